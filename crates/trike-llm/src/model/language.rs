//! [`Model`] for the [`LanguageModel`] of every backend.

use std::{any::Any, collections::BTreeMap, path::Path};

use trike_core::Layout;
use trike_format::Difference;
use trike_nn::{
    ActivationPrecision, Backend, CacheCapabilities, CpuBackend, DeviceUse, KernelTuning, KvPrecision,
    KvSpec, MemoryPlan,
};

use super::{DecoderBatch, Model, SequenceBatch};
use crate::{
    GenerateOptions, Generation, LanguageModel, LlmError, ModelConfig, OnText, Pooling, PreparedRequest,
    Session, generate::PROMPT_STEP, tokenizer::Tokenizer,
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

    fn device_uses(&self) -> Vec<(String, DeviceUse)> {
        self.decoder().backend().device_uses()
    }

    fn tune(
        &self,
        tokens: &[usize],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<KernelTuning, LlmError> {
        Ok(self.decoder().backend().tune(tokens, progress)?)
    }

    fn layouts(&self) -> BTreeMap<Layout, usize> {
        self.decoder().layouts()
    }

    fn memory(&self, kv: &KvSpec) -> MemoryPlan {
        let spec = self.decoder().spec();
        let plan = MemoryPlan::new(spec, self.decoder().weight_bytes() as u64, kv, PROMPT_STEP);
        if self.decoder().backend().device_use().is_some() { plan.on_device(spec, kv) } else { plan }
    }

    fn default_kv(&self) -> KvPrecision {
        LanguageModel::default_kv(self)
    }

    fn capabilities(&self) -> CacheCapabilities {
        self.decoder().backend().capabilities()
    }

    fn host(&self) -> Option<&LanguageModel<CpuBackend>> {
        (self as &dyn Any).downcast_ref()
    }

    fn host_mut(&mut self) -> Option<&mut LanguageModel<CpuBackend>> {
        (self as &mut dyn Any).downcast_mut()
    }

    fn batch(&self, kv: &KvSpec, count: usize) -> Result<Box<dyn SequenceBatch + '_>, LlmError> {
        Ok(Box::new(DecoderBatch::new(self.decoder(), kv, count)?))
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

    fn run(
        &self,
        session: &mut Session,
        request: &PreparedRequest,
        on_text: &mut OnText<'_>,
    ) -> Result<Generation, LlmError> {
        LanguageModel::run(self, session, request, on_text)
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
}
