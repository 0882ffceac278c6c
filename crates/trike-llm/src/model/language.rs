//! [`Model`] for the [`LanguageModel`] of every backend.

use std::{any::Any, collections::BTreeMap, path::Path};

use trike_core::Layout;
use trike_format::Difference;
use trike_nn::{
    ActivationPrecision, Backend, CpuBackend, Decoder, DeviceUse, KvPrecision, KvSpec, MemoryPlan, Tuning,
};

use super::{Model, OnText};
use crate::{
    GenerateOptions, Generation, LanguageModel, LlmError, ModelConfig, Pooling, Session,
    bench::{self, BenchOptions, BenchReport},
    generate::STEP,
    tokenizer::Tokenizer,
};

impl<B: Backend + 'static> Model for LanguageModel<B> {
    fn path(&self) -> &Path {
        LanguageModel::path(self)
    }

    fn config(&self) -> &ModelConfig {
        LanguageModel::config(self)
    }

    fn tokenizer(&self) -> Result<&Tokenizer, LlmError> {
        LanguageModel::tokenizer(self)
    }

    fn backend(&self) -> String {
        self.decoder().backend().name()
    }

    fn activations(&self) -> Vec<ActivationPrecision> {
        LanguageModel::activations(self).iter().copied().collect()
    }

    fn device_use(&self) -> Option<DeviceUse> {
        self.decoder().backend().device_use()
    }

    fn device_uses(&self) -> Vec<(String, DeviceUse)> {
        self.decoder().backend().device_uses()
    }

    fn tune(&self, tokens: &[usize], progress: &mut dyn FnMut(usize, usize)) -> Result<Tuning, LlmError> {
        Ok(self.decoder().backend().tune(tokens, progress)?)
    }

    fn weight_bytes(&self) -> usize {
        self.decoder().weight_bytes()
    }

    fn layouts(&self) -> BTreeMap<Layout, usize> {
        self.decoder().layouts()
    }

    fn memory(&self, kv: &KvSpec) -> MemoryPlan {
        let spec = self.decoder().spec();
        let plan = MemoryPlan::new(spec, self.weight_bytes() as u64, kv, STEP);
        if self.device_use().is_some() { plan.on_device(spec, kv) } else { plan }
    }

    fn default_kv(&self) -> KvPrecision {
        LanguageModel::default_kv(self)
    }

    fn can_cache(&self, kv: KvPrecision) -> bool {
        self.decoder().backend().capabilities().can_cache(kv)
    }

    fn cache_precision(&self, wanted: KvPrecision) -> KvPrecision {
        self.decoder().backend().capabilities().cache_precision(wanted)
    }

    fn cache_errors(&self, ids: &[u32], precisions: &[KvPrecision]) -> Result<Vec<Vec<f64>>, LlmError> {
        let context = self.decoder().spec().context;
        if ids.len() > context {
            return Err(LlmError::PromptTooLong { tokens: ids.len(), context });
        }
        // The blocks are run one by one, which other ranks do not follow, and the layers of a device do not differ; the downcast keeps this
        // out of the `Backend` trait.
        match (self.decoder() as &dyn Any).downcast_ref::<Decoder<CpuBackend>>() {
            Some(decoder) => {
                Ok(decoder.cache_errors(ids, LanguageModel::default_kv(self), precisions, STEP)?)
            }
            None => Err(LlmError::KvChoice { backend: Model::backend(self) }),
        }
    }

    fn logits_with(
        &self,
        ids: &[u32],
        kv: &KvSpec,
        on_row: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), LlmError> {
        LanguageModel::logits_with(self, ids, kv, on_row)
    }

    fn logits_in(
        &self,
        session: &mut Session,
        ids: &[u32],
        prompt: usize,
        kv: &KvSpec,
        on_row: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), LlmError> {
        LanguageModel::logits_in(self, session, ids, prompt, kv, on_row)
    }

    fn generate_in(
        &self,
        session: &mut Session,
        prompt_ids: Vec<u32>,
        ends: &[u32],
        options: &GenerateOptions,
        on_text: &mut OnText<'_>,
    ) -> Result<Generation, LlmError> {
        LanguageModel::generate_in(self, session, prompt_ids, ends, options, on_text)
    }

    fn save_session(&self, session: &Session, path: &Path) -> Result<(), LlmError> {
        LanguageModel::save_session(self, session, path)
    }

    fn load_session(
        &self,
        path: &Path,
        options: &GenerateOptions,
    ) -> Result<Result<Session, Difference>, LlmError> {
        LanguageModel::load_session(self, path, options)
    }

    fn embed(&self, ids: &[u32], pooling: Pooling) -> Result<Vec<f32>, LlmError> {
        LanguageModel::embed(self, ids, pooling)
    }

    fn bench(
        &mut self,
        options: &BenchOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<BenchReport, LlmError> {
        let default = LanguageModel::default_kv(self);
        bench::run(self.decoder_mut(), default, options, progress)
    }
}
