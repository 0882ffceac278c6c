//! Which tokens run next.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use trike_llm::{FinishReason, PROMPT_STEP, SequenceBatch};
use trike_nn::{KV_PAGE, KvPage, PROMPT_ROWS, StepLogits};

use crate::active::{Active, Ending, panicked};
use crate::prefix::PrefixTree;
use crate::{EngineError, EngineOptions, Event, Metrics, Slot};

/// The requests of a model, and the sequences that they run in.
pub(crate) struct Scheduler<'m> {
    batch: Box<dyn SequenceBatch + 'm>,
    /// The request of each sequence.
    slots: Vec<Option<Active<'m>>>,
    /// The slots in the order in which their requests started, which is also the order of prompts.
    order: Vec<usize>,
    waiting: VecDeque<Active<'m>>,
    tree: PrefixTree<KvPage>,
    options: EngineOptions,
    /// Maximum tokens of a sequence.
    context: usize,
    /// Maximum pages; `None` without pages.
    page_limit: Option<usize>,
    /// Requests that have ended and were not told so yet: first the metrics are published that count them.
    ended: Vec<(Active<'m>, Ending)>,
    pub(crate) metrics: Metrics,
}

fn pages_of(tokens: usize) -> usize {
    tokens.div_ceil(KV_PAGE)
}

impl<'m> Scheduler<'m> {
    /// Runs requests in the sequences of `batch`, of at most `context` tokens each and `page_limit` pages together.
    pub(crate) fn new(
        batch: Box<dyn SequenceBatch + 'm>,
        options: EngineOptions,
        context: usize,
        page_limit: usize,
    ) -> Self {
        let page_limit = batch.is_paged().then_some(page_limit);
        let metrics = Metrics { page_limit: page_limit.unwrap_or(0), ..Metrics::default() };
        let slots = (0..batch.count()).map(|_| None).collect();
        let (order, waiting, tree, ended) = (Vec::new(), VecDeque::new(), PrefixTree::default(), Vec::new());
        Self { batch, slots, order, waiting, tree, options, context, page_limit, ended, metrics }
    }

    /// Whether nothing runs or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.order.is_empty() && self.waiting.is_empty()
    }

    /// Tokens of the longest prompt.
    pub(crate) fn longest_prompt(&self) -> usize {
        let fits = self.page_limit.map_or(usize::MAX, |pages| pages.saturating_mul(KV_PAGE));
        // One more position, for the first new token.
        self.context.min(fits).saturating_sub(1)
    }

    /// Takes a request; it starts when there is room for it.
    pub(crate) fn submit(&mut self, request: Active<'m>) {
        self.metrics.requests += 1;
        self.waiting.push_back(request);
    }

    /// What runs in each sequence.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        let slot = |(index, active): (usize, &Option<Active<'m>>)| match active {
            None => Slot::default(),
            Some(active) => Slot {
                request: Some(active.id),
                prompt: active.prompt,
                position: self.batch.len(index),
                generated: active.text.ids().len(),
            },
        };
        self.slots.iter().enumerate().map(slot).collect()
    }

    /// The metrics of this moment.
    pub(crate) fn observe(&mut self) -> Metrics {
        self.metrics.running = self.order.len();
        self.metrics.waiting = self.waiting.len();
        self.metrics.pages = self.pages_in_use();
        self.metrics.kept_pages = self.tree.pages();
        self.metrics.clone()
    }

    /// Ends all requests with an error.
    pub(crate) fn fail_all(&mut self, error: &EngineError) {
        for slot in std::mem::take(&mut self.order) {
            self.end(slot, Ending::Failed(error.clone()));
        }
        for request in std::mem::take(&mut self.waiting) {
            self.close(request, Ending::Failed(error.clone()));
        }
    }

    /// Counts a request that has ended, which [`report`](Self::report) tells it.
    pub(crate) fn close(&mut self, request: Active<'m>, ending: Ending) {
        match ending {
            Ending::Failed(_) => self.metrics.failed += 1,
            Ending::Finished(FinishReason::Cancelled) => self.metrics.cancelled += 1,
            Ending::Finished(_) => self.metrics.finished += 1,
        }
        self.ended.push((request, ending));
    }

    /// Tells the requests that have ended. To be called after the metrics that count them were published.
    pub(crate) fn report(&mut self) {
        for (request, ending) in self.ended.drain(..) {
            request.end(ending);
        }
    }

    /// Ends what is over, starts what fits, and runs one step.
    pub(crate) fn step(&mut self) {
        self.end_what_is_over();
        self.start_what_fits();
        let mut plan = self.plan();
        while !plan.is_empty() && !self.make_room(&plan) {
            plan = self.plan();
        }
        if !plan.is_empty() {
            self.run(&plan);
        }
    }

    fn end_what_is_over(&mut self) {
        let now = Instant::now();
        for slot in self.order.clone() {
            if let Some(ending) = self.slots[slot].as_ref().and_then(|active| active.over(now)) {
                self.end(slot, ending);
            }
        }
        for request in std::mem::take(&mut self.waiting) {
            match request.over(now) {
                Some(ending) => self.close(request, ending),
                None => self.waiting.push_back(request),
            }
        }
    }

    /// Starts requests in the order of their arrival. One whose beginning is just being read for another waits for that, and those
    /// after it may go first.
    fn start_what_fits(&mut self) {
        let mut index = 0;
        while index < self.waiting.len() {
            let Some(slot) = self.slots.iter().position(Option::is_none) else { return };
            let request = &self.waiting[index];
            let ids = &request.text.history()[..request.prompt];
            let limit = ids.len().saturating_sub(PROMPT_ROWS);
            let (pages, reused) = match self.options.reuse && self.page_limit.is_some() {
                true => self.tree.find(ids, limit),
                false => (Vec::new(), 0),
            };
            if self.is_being_read(ids, limit, reused) {
                index += 1;
                continue;
            }
            // The pages found must not be evicted to make room.
            let needed = pages_of(ids.len() + 1) - reused / KV_PAGE;
            if !self.has_room(needed) && !self.order.is_empty() {
                return;
            }
            let Some(mut request) = self.waiting.remove(index) else { return };
            let adopted = match reused {
                0 => Ok(()),
                _ => self.batch.adopt(slot, &pages, reused),
            };
            request.shared = pages;
            // The last page is copied when it is written to.
            request.shared.truncate(reused / KV_PAGE);
            // A preempted request has said so already.
            if request.times.started.is_none() {
                request.times.started = Some(Instant::now());
                request.reused = reused;
                self.metrics.reused_tokens += reused as u64;
                request.say(Event::Started { reused });
            }
            self.slots[slot] = Some(request);
            self.order.push(slot);
            if let Err(error) = adopted {
                self.end(slot, Ending::Failed(error.into()));
            }
        }
    }

    /// Whether a running request has still to read tokens that this prompt begins with, beyond the `reused` ones.
    fn is_being_read(&self, ids: &[u32], limit: usize, reused: usize) -> bool {
        if !self.options.reuse || self.page_limit.is_none() {
            return false;
        }
        self.order.iter().any(|&slot| {
            let done = self.batch.len(slot);
            self.slots[slot].as_ref().is_some_and(|active| {
                let prompt = &active.text.history()[..active.prompt];
                let common = prompt.iter().zip(&ids[..limit]).take_while(|(a, b)| a == b).count();
                done < active.prompt && common / KV_PAGE * KV_PAGE >= reused + KV_PAGE
            })
        })
    }

    /// The sequences of the next step with their numbers of tokens: one of each text that is being generated, and parts of prompts. Half of
    /// these are of the prompt that waits longest, so that it is not passed forever; the others of those that need least, so that
    /// a short prompt does not wait for a long one.
    fn plan(&self) -> Vec<(usize, usize)> {
        let left = |slot: usize| {
            let prompt = self.slots[slot].as_ref().map_or(0, |active| active.prompt);
            prompt.saturating_sub(self.batch.len(slot))
        };
        let (mut prompts, texts): (Vec<usize>, Vec<usize>) =
            self.order.iter().partition(|&&slot| left(slot) > 0);
        let mut plan: Vec<(usize, usize)> = texts.iter().map(|&slot| (slot, 1)).collect();
        // Texts that are being generated wait for the step.
        let mut budget = if texts.is_empty() { PROMPT_STEP } else { self.options.prompt_share };
        if prompts.is_empty() {
            return plan;
        }
        let oldest = prompts.remove(0);
        prompts.sort_by_key(|&slot| left(slot));
        let of_oldest = if prompts.is_empty() { budget } else { (budget / 2).max(PROMPT_ROWS) };
        for slot in [oldest].into_iter().chain(prompts) {
            let share = if slot == oldest { of_oldest } else { budget };
            // What is left would be too short a part.
            if share < PROMPT_ROWS && left(slot) > share {
                continue;
            }
            let Some(active) = &self.slots[slot] else { continue };
            let rows = active.rows(self.batch.len(slot), share);
            budget = budget.saturating_sub(rows);
            plan.push((slot, rows));
        }
        plan
    }

    /// Pages that the tree and the running sequences have.
    fn pages_in_use(&self) -> usize {
        if self.page_limit.is_none() {
            return 0;
        }
        let own = |&slot: &usize| {
            let shared = self.slots[slot].as_ref().map_or(0, |active| active.shared.len());
            pages_of(self.batch.len(slot)).saturating_sub(shared)
        };
        self.tree.pages() + self.order.iter().map(own).sum::<usize>()
    }

    /// Whether `pages` more pages fit, after evicting kept ones if necessary.
    fn has_room(&mut self, pages: usize) -> bool {
        let Some(limit) = self.page_limit else { return true };
        let wanted = self.pages_in_use() + pages;
        // The tree's own reference is one of two while the page is looked at.
        let freed = self.tree.evict(wanted.saturating_sub(limit), &|page| page.references() > 1);
        wanted - freed <= limit
    }

    /// Whether there is room for a step. If not, the request that started last is stopped for now; the last one of all ends.
    fn make_room(&mut self, plan: &[(usize, usize)]) -> bool {
        let growth = |&(slot, rows): &(usize, usize)| {
            let len = self.batch.len(slot);
            let shared = self.slots[slot].as_ref().map_or(0, |active| active.shared.len());
            // An adopted page that is written to becomes the sequence's own: it is counted as such already.
            pages_of(len + rows).saturating_sub(shared) - pages_of(len).saturating_sub(shared)
        };
        let wanted = plan.iter().map(growth).sum();
        if self.has_room(wanted) {
            return true;
        }
        match self.order.len() {
            0 => {}
            1 => self.end(self.order[0], Ending::Finished(FinishReason::Context)),
            count => {
                let slot = self.order[count - 1];
                self.order.pop();
                if let Some(mut request) = self.slots[slot].take() {
                    request.shared.clear();
                    self.metrics.preempted += 1;
                    self.waiting.push_front(request);
                }
                // Clearing a sequence in pages cannot fail; one that does fails in its next step.
                let _ = self.batch.clear(slot);
            }
        }
        false
    }

    /// Runs a step and samples the tokens that follow.
    fn run(&mut self, plan: &[(usize, usize)]) {
        let mut steps = Vec::with_capacity(plan.len());
        let mut largest = Some(1);
        for &(slot, rows) in plan {
            let Some(active) = &self.slots[slot] else { continue };
            let done = self.batch.len(slot);
            steps.push((slot, &active.text.history()[done..done + rows]));
            largest = largest.zip(active.text.largest()).map(|(a, b)| a.max(b));
        }
        let prompt = |slot: usize| self.slots[slot].as_ref().map_or(0, |active| active.prompt);
        let is_prompt = |(slot, _): &&(usize, usize)| self.batch.len(*slot) < prompt(*slot);
        let prompt_tokens: usize = plan.iter().filter(is_prompt).map(|(_, rows)| rows).sum();
        let batch = &mut self.batch;
        let stepped = catch_unwind(AssertUnwindSafe(|| batch.step(&steps, largest)));
        self.metrics.steps += 1;
        self.metrics.prompt_tokens += prompt_tokens as u64;
        let logits = match stepped {
            Ok(Ok(logits)) => logits,
            Ok(Err(error)) => return self.fail_step(plan, &error.into()),
            Err(panic) => return self.fail_step(plan, &panicked(&*panic)),
        };
        for (&(slot, _), logits) in plan.iter().zip(logits) {
            self.after_step(slot, logits);
        }
    }

    /// An error of a step is one of all its requests.
    fn fail_step(&mut self, plan: &[(usize, usize)], error: &EngineError) {
        for &(slot, _) in plan {
            self.end(slot, Ending::Failed(error.clone()));
        }
    }

    fn after_step(&mut self, slot: usize, logits: StepLogits) {
        let done = self.batch.len(slot);
        let context = self.context;
        let Some(active) = &mut self.slots[slot] else { return };
        let (history, prompt) = (active.text.history().len(), active.prompt);
        let mut ending = None;
        if done == history {
            let now = Instant::now();
            match active.since_last(now) {
                Some(time) => self.metrics.between_tokens.add(time),
                None => self.metrics.first_token.add(now.duration_since(active.times.arrived)),
            }
            ending = active.sample(logits);
            self.metrics.generated_tokens += (active.text.history().len() - history) as u64;
            if ending.is_none() && done >= context {
                ending = Some(Ending::Finished(FinishReason::Context));
            }
        }
        if done <= prompt {
            self.share(slot, done / KV_PAGE * KV_PAGE);
        }
        if let Some(ending) = ending {
            self.end(slot, ending);
        }
    }

    /// Keeps the pages with the first `tokens` tokens of a running sequence for later texts.
    fn share(&mut self, slot: usize, tokens: usize) {
        let Some(active) = &mut self.slots[slot] else { return };
        let known = active.shared.len() * KV_PAGE;
        if !self.options.reuse || self.page_limit.is_none() || tokens <= known {
            return;
        }
        // Pages that cannot be had are not kept; the request goes on.
        let Ok(pages) = self.batch.pages(slot, tokens) else { return };
        let own: Vec<usize> = pages.iter().map(KvPage::id).collect();
        let (kept, _) = self.tree.insert(&active.text.history()[..tokens], pages);
        // The tree may have other pages with the same tokens, since before this request read them.
        let is_own = |(own, kept): &(&usize, &KvPage)| **own == kept.id();
        active.shared = own.iter().zip(&kept).take_while(is_own).map(|(_, kept)| kept.clone()).collect();
    }

    /// Ends the request of a sequence.
    fn end(&mut self, slot: usize, ending: Ending) {
        self.order.retain(|other| *other != slot);
        let Some(active) = self.slots[slot].take() else { return };
        if self.options.reuse && self.page_limit.is_some() && matches!(ending, Ending::Finished(_)) {
            let done = self.batch.len(slot);
            let tokens = if self.options.reuse_generated { done } else { done.min(active.prompt) };
            if let Ok(pages) = self.batch.pages(slot, tokens) {
                self.tree.insert(&active.text.history()[..tokens], pages);
            }
        }
        self.close(active, ending);
        if let Err(error) = self.batch.clear(slot) {
            // Without its memory back the sequence must not be used again: an error for every later request is better than wrong text.
            self.fail_all(&error.into());
        }
        // What was added may be over the limit.
        let _ = self.has_room(0);
    }
}
