//! The keys and values of earlier texts, as a tree over their tokens.

use std::collections::BTreeMap;

use trike_nn::KV_PAGE;

/// A tree whose nodes are pages. A full page has [`KV_PAGE`] tokens; a shorter one is the end of a text and has no children.
#[derive(Debug)]
pub(crate) struct PrefixTree<P> {
    root: Children<P>,
    /// The number of nodes.
    pages: usize,
    /// Increased by each use.
    clock: u64,
}

/// Nodes by their tokens.
type Children<P> = BTreeMap<Vec<u32>, Node<P>>;

#[derive(Debug)]
struct Node<P> {
    page: P,
    used: u64,
    children: Children<P>,
}

impl<P> Default for PrefixTree<P> {
    fn default() -> Self {
        Self { root: Children::new(), pages: 0, clock: 0 }
    }
}

/// Length of the common prefix.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl<P: Clone> PrefixTree<P> {
    /// The number of pages.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// The pages of the longest known prefix of `ids` of at most `limit` tokens, and its length. The last page may have more tokens
    /// than the prefix.
    pub(crate) fn find(&mut self, ids: &[u32], limit: usize) -> (Vec<P>, usize) {
        self.clock += 1;
        let ids = &ids[..limit.min(ids.len())];
        let (mut pages, mut at, mut children) = (Vec::new(), 0, &mut self.root);
        while at < ids.len() {
            let key = &ids[at..ids.len().min(at + KV_PAGE)];
            // The tokens with the longest common prefix are neighbours in the order.
            let before = children.range(..=key.to_vec()).next_back().map(|(tokens, _)| tokens);
            let after = children.range(key.to_vec()..).next().map(|(tokens, _)| tokens);
            let best = before.into_iter().chain(after).max_by_key(|tokens| common(tokens, key));
            let Some(best) = best.filter(|tokens| common(tokens, key) > 0).cloned() else { break };
            let shared = common(&best, key);
            let Some(node) = children.get_mut(&best) else { break };
            node.used = self.clock;
            pages.push(node.page.clone());
            at += shared;
            if shared < KV_PAGE {
                break;
            }
            children = &mut node.children;
        }
        (pages, at)
    }

    /// Adds the pages of a text. Returns those that are now in the tree, added by this call or by an earlier one with the same tokens,
    /// and the number of added ones.
    pub(crate) fn insert(&mut self, ids: &[u32], pages: impl IntoIterator<Item = P>) -> (Vec<P>, usize) {
        self.clock += 1;
        let (mut kept, mut added, mut children) = (Vec::new(), 0, &mut self.root);
        for (key, page) in ids.chunks(KV_PAGE).zip(pages) {
            if key.len() < KV_PAGE {
                let longer = children.range(key.to_vec()..).next();
                if longer.is_some_and(|(tokens, _)| tokens.starts_with(key)) {
                    break;
                }
            }
            if !children.contains_key(key) {
                // A shorter end of a text that this one continues.
                let shorter = children.range(..key.to_vec()).next_back().map(|(tokens, _)| tokens.clone());
                if let Some(shorter) = shorter.filter(|shorter| key.starts_with(shorter)) {
                    children.remove(&shorter);
                    self.pages -= 1;
                }
                let node = Node { page: page.clone(), used: 0, children: Children::new() };
                children.insert(key.to_vec(), node);
                self.pages += 1;
                added += 1;
            }
            let Some(node) = children.get_mut(key) else { break };
            node.used = self.clock;
            kept.push(node.page.clone());
            children = &mut node.children;
        }
        (kept, added)
    }

    /// Removes up to `count` pages that are not in use, the longest unused first, and returns their number. A page goes after those
    /// that continue it.
    pub(crate) fn evict(&mut self, count: usize, in_use: &dyn Fn(&P) -> bool) -> usize {
        for removed in 0..count {
            let Some((_, path)) = oldest(&self.root, in_use) else { return removed };
            if !remove(&mut self.root, &path) {
                return removed;
            }
            self.pages -= 1;
        }
        count
    }
}

/// When the longest unused leaf was used, and the keys of the path to it, the last one first.
fn oldest<P>(children: &Children<P>, in_use: &dyn Fn(&P) -> bool) -> Option<(u64, Vec<Vec<u32>>)> {
    let leaf = |(key, node): (&Vec<u32>, &Node<P>)| {
        if node.children.is_empty() {
            return (!in_use(&node.page)).then(|| (node.used, vec![key.clone()]));
        }
        let (used, mut path) = oldest(&node.children, in_use)?;
        path.push(key.clone());
        Some((used, path))
    };
    children.iter().filter_map(leaf).min_by_key(|(used, _)| *used)
}

/// Removes the leaf at the end of a path.
fn remove<P>(children: &mut Children<P>, path: &[Vec<u32>]) -> bool {
    match path {
        [leaf] => children.remove(leaf).is_some(),
        [rest @ .., key] => children.get_mut(key).is_some_and(|node| remove(&mut node.children, rest)),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use trike_testkit::Rng;

    use super::*;

    fn text(start: u32, len: usize) -> Vec<u32> {
        (start..).take(len).collect()
    }

    #[test]
    fn the_longest_prefix_is_found() {
        let mut tree = PrefixTree::default();
        let long = text(0, 150);
        assert_eq!(tree.insert(&long, ["a", "b", "c"]), (vec!["a", "b", "c"], 3));
        assert_eq!(tree.find(&long, 150), (vec!["a", "b", "c"], 150));
        assert_eq!(tree.find(&long, 149), (vec!["a", "b", "c"], 149));
        assert_eq!(tree.find(&long[..128], 128), (vec!["a", "b"], 128));
        assert_eq!(tree.find(&[&long[..70], &[9, 9]].concat(), 72), (vec!["a", "b"], 70));
        assert_eq!(tree.find(&[7], 1), (vec![], 0));
        // The same tokens again: the first pages stay. Their continuation replaces the short last page.
        let longer = text(0, 200);
        assert_eq!(tree.insert(&longer, ["x", "y", "z", "w"]), (vec!["a", "b", "z", "w"], 2));
        assert_eq!(tree.pages(), 4);
        // A shorter end of the same text adds nothing.
        assert_eq!(tree.insert(&text(0, 140), ["x", "y", "q"]), (vec!["a", "b"], 0));
    }

    #[test]
    fn pages_go_in_the_order_of_their_last_use_and_never_those_in_use() {
        let mut tree = PrefixTree::default();
        tree.insert(&text(0, 128), ["a", "b"]);
        tree.insert(&text(1000, 64), ["c"]);
        tree.find(&text(0, 64), 64);
        let in_use = |page: &&str| *page == "c";
        // `b` was used before `a`, and `c` is in use.
        assert_eq!(tree.evict(1, &in_use), 1);
        assert_eq!(tree.find(&text(0, 128), 128), (vec!["a"], 64));
        assert_eq!(tree.evict(5, &in_use), 1);
        assert_eq!((tree.pages(), tree.evict(1, &in_use)), (1, 0));
        assert_eq!(tree.evict(1, &|_| false), 1);
        assert_eq!(tree.find(&text(1000, 64), 64), (vec![], 0));
    }

    /// Against a list of all texts: what is found is a true prefix, as long as the longest one of the list; once pages were evicted, at
    /// most as long. `TRIKE_FUZZ_SECONDS` lets it run longer.
    #[test]
    fn random_texts_are_found_as_in_a_list() {
        let seconds =
            std::env::var("TRIKE_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
        let start = std::time::Instant::now();
        let mut seed = 17;
        loop {
            random_texts(seed);
            seed += 1;
            if start.elapsed().as_secs() >= seconds && seed > 20 {
                break;
            }
        }
    }

    fn random_texts(seed: u64) {
        let mut rng = Rng::new(seed);
        let mut tree = PrefixTree::default();
        let mut all: Vec<Vec<u32>> = Vec::new();
        let mut evicted = false;
        for _ in 0..100 + rng.below(200) {
            // Few tokens, so that texts begin alike.
            let start: Vec<u32> = match all.get(rng.below(all.len() + 1)) {
                Some(text) => text[..rng.below(text.len() + 1)].to_vec(),
                None => Vec::new(),
            };
            let more = (0..1 + rng.below(100)).map(|_| rng.below(3) as u32);
            let text: Vec<u32> = start.into_iter().chain(more).collect();
            let limit = if rng.below(4) == 0 { rng.below(text.len() + 1) } else { text.len() };
            let (pages, len) = tree.find(&text, limit);
            let longest = all.iter().map(|old| common(old, &text[..limit])).max().unwrap_or(0);
            assert!(if evicted { len <= longest } else { len == longest }, "{len} of {longest}");
            assert_eq!(pages.len(), len.div_ceil(KV_PAGE));
            // A page is the tokens up to its end.
            for (number, page) in pages.iter().enumerate() {
                let page: &Vec<u32> = page;
                let end = len.min((number + 1) * KV_PAGE);
                assert_eq!(page[..end], text[..end], "page {number}");
            }
            if rng.below(3) > 0 {
                let ends = (1..=text.len().div_ceil(KV_PAGE)).map(|page| (page * KV_PAGE).min(text.len()));
                let before = tree.pages();
                let (kept, added) = tree.insert(&text, ends.map(|end| text[..end].to_vec()));
                assert!(tree.pages() <= before + added && kept.len() <= text.len().div_ceil(KV_PAGE));
                for (number, page) in kept.iter().enumerate() {
                    let end = page.len().min(text.len());
                    assert!(page[..end] == text[..end] && end > number * KV_PAGE);
                }
                all.push(text);
            }
            if rng.below(10) == 0 {
                let (before, wanted) = (tree.pages(), rng.below(6));
                let used: Vec<Vec<u32>> = pages;
                let removed = tree.evict(wanted, &|page| used.contains(page));
                assert!(removed <= wanted && tree.pages() == before - removed);
                evicted |= removed > 0;
                assert_eq!(tree.pages(), count(&tree.root));
            }
        }
        // Nothing is in use: everything goes.
        let pages = tree.pages();
        assert_eq!((tree.evict(usize::MAX, &|_| false), tree.pages(), count(&tree.root)), (pages, 0, 0));
    }

    fn count(children: &Children<Vec<u32>>) -> usize {
        children.values().map(|node| 1 + count(&node.children)).sum()
    }
}
