//! The template engine, configured for chat templates and limited in resources.
//!
//! A template is compiled by minijinja, and then every instruction that can create or compare data of unbounded size is
//! replaced by a call of a function in `guard`, which charges a budget. Other instructions and jumps are
//! unchanged. Rendering runs on a separate thread with a large stack, because values can be nested as deep as
//! the fuel allows and are dropped recursively, with one stack frame per level.

use std::{collections::BTreeMap, error::Error as _, sync::Arc, thread, time::SystemTime};

use minijinja::{
    AutoEscape, Error, ErrorKind,
    machinery::{self, CompiledTemplate, Instruction, Instructions, TemplateConfig},
    syntax::SyntaxConfig,
    value::Value,
};

use super::{
    ChatError,
    budget::{Budget, OverLimit, over_limit},
    builtins::{LeftOut, Raised, call, environment},
    values::may_be_method,
};

/// Maximum size of a template, in bytes. The longest in use have 40,000.
pub(super) const MAX_TEMPLATE_BYTES: usize = 128 << 10;
/// Maximum number of instructions per rendering. A message takes about a hundred.
const FUEL: u64 = 400_000;
/// Maximum size of a prompt, in bytes; more than a context of a million tokens.
const MAX_PROMPT_BYTES: usize = 8 << 20;
/// Stack size for compiling and rendering: four times the use of the deepest values and expressions within the limits, in
/// a debug build. Memory is committed only for templates that nest so deeply.
const STACK: usize = 256 << 20;

/// Checks that `source` compiles.
pub(super) fn check(source: &str) -> Result<(), ChatError> {
    on_deep_stack(|| compile(source).map(drop))?.map_err(|e| chat_error(&e))
}

/// Renders `source` with the variables of `context`.
pub(super) fn render(source: &str, context: Value, now: SystemTime) -> Result<String, ChatError> {
    on_deep_stack(move || render_here(source, context, now))?.map_err(|e| chat_error(&e))
}

fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, ChatError> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat template".to_owned()).stack_size(STACK);
        match builder.spawn_scoped(scope, work).map_err(ChatError::Thread)?.join() {
            Ok(result) => Ok(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn render_here(source: &str, context: Value, now: SystemTime) -> Result<String, Error> {
    let instructions = compile(source)?;
    let budget = Arc::new(Budget::new());
    let env = environment(&budget, FUEL, now);
    let mut prompt = String::new();
    let blocks = BTreeMap::new();
    let mut out = machinery::make_string_output(&mut prompt);
    machinery::eval(&env, &instructions, context, &blocks, &mut out, AutoEscape::None)?;
    if prompt.len() > MAX_PROMPT_BYTES {
        return Err(over_limit("bytes of prompt", MAX_PROMPT_BYTES));
    }
    Ok(prompt)
}

/// Converts an error of the engine, with its line.
fn chat_error(error: &Error) -> ChatError {
    let line = error.line().unwrap_or(0);
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return ChatError::Refused { message: message.clone() };
        }
        if let Some(&OverLimit { what, limit }) = inner.downcast_ref() {
            return ChatError::LimitExceeded { what, limit };
        }
        if let Some(&LeftOut { feature, line: known }) = inner.downcast_ref() {
            return ChatError::Unsupported { line: line.max(known), feature };
        }
        source = inner.source();
    }
    let message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match error.kind() {
        ErrorKind::OutOfFuel => ChatError::LimitExceeded { what: "instructions", limit: FUEL },
        ErrorKind::SyntaxError => ChatError::Syntax { line, message },
        _ => ChatError::Render { line, message },
    }
}

fn compile(source: &str) -> Result<Instructions<'_>, Error> {
    let config = TemplateConfig {
        syntax_config: SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?,
        default_auto_escape: Arc::new(|_: &str| AutoEscape::None),
    };
    guarded(&CompiledTemplate::new("chat template", source, &config)?.instructions)
}

fn guarded<'s>(old: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    // The new position of each instruction; the end is a jump target, too.
    let mut places = Vec::new();
    let mut next = 0;
    for pc in 0.. {
        places.push(next);
        match old.get(pc) {
            Some(Instruction::EmitRaw(_) | Instruction::UnpackLists(_) | Instruction::PushLoop(_)) => {
                next += 2;
            }
            Some(Instruction::GetAttr(name)) if may_be_method(name) => next += 2,
            Some(Instruction::SetAttr(name)) if name.starts_with('_') => next += 2,
            Some(Instruction::CompareAndPreserve(_)) => next += 5,
            Some(_) => next += 1,
            None => break,
        }
    }
    let place = |target: u32| places.get(target as usize).copied().unwrap_or(next);
    let mut new = Instructions::new(old.name(), old.source());
    for pc in 0.. {
        let Some(instruction) = old.get(pc) else { break };
        let line = old.get_line(pc).unwrap_or(0);
        let filter = |name, arguments| Instruction::ApplyFilter(name, Some(arguments), !0);
        let refuse = |feature| {
            let left_out = LeftOut { feature, line };
            Err(Error::new(ErrorKind::SyntaxError, left_out.to_string()).with_source(left_out))
        };
        let replaced = match instruction {
            Instruction::EmitRaw(text) => {
                // Text of the template is charged like other text, because a loop can repeat it.
                new.add_with_line(Instruction::LoadConst(Value::from(*text)), line as u16);
                Instruction::Emit
            }
            Instruction::Add => filter(call::ADD, 2),
            Instruction::StringConcat => filter(call::CONCAT, 2),
            Instruction::Mul => filter(call::MULTIPLY, 2),
            Instruction::Slice => filter(call::SLICE, 4),
            Instruction::Eq => filter(call::EQUAL, 2),
            Instruction::Ne => filter(call::UNEQUAL, 2),
            Instruction::Lt => filter(call::LESS, 2),
            Instruction::Lte => filter(call::LESS_EQUAL, 2),
            Instruction::Gt => filter(call::GREATER, 2),
            Instruction::Gte => filter(call::GREATER_EQUAL, 2),
            Instruction::In => filter(call::IN, 2),
            Instruction::GetItem => filter(call::ITEM, 2),
            Instruction::GetAttr(name) if may_be_method(name) => {
                new.add_with_line(Instruction::LoadConst(Value::from(*name)), line as u16);
                filter(call::ATTRIBUTE, 2)
            }
            Instruction::SetAttr(name) if name.starts_with('_') => {
                new.add_with_line(filter(call::PRIVATE, 1), line as u16);
                instruction.clone()
            }
            Instruction::PushLoop(_) => {
                new.add_with_line(filter(call::ITERATED, 1), line as u16);
                instruction.clone()
            }
            Instruction::Iterate(target) => Instruction::Iterate(place(*target)),
            Instruction::Jump(target) => Instruction::Jump(place(*target)),
            Instruction::JumpIfFalse(target) => Instruction::JumpIfFalse(place(*target)),
            Instruction::JumpIfFalseOrPop(target) => Instruction::JumpIfFalseOrPop(place(*target)),
            Instruction::JumpIfTrueOrPop(target) => Instruction::JumpIfTrueOrPop(place(*target)),
            Instruction::BuildMacro(name, offset, flags) => {
                Instruction::BuildMacro(name, place(*offset), *flags)
            }
            Instruction::Rem => filter(call::REMAINDER, 2),
            Instruction::CompareAndPreserve(_) => {
                // The comparison itself is kept; both sides are charged before it.
                for charged in
                    [filter(call::CHARGE, 1), Instruction::Swap, filter(call::CHARGE, 1), Instruction::Swap]
                {
                    new.add_with_line(charged, line as u16);
                }
                instruction.clone()
            }
            Instruction::UnpackLists(count) => {
                // All lists are merged into one, which is charged.
                let count = u16::try_from(*count).unwrap_or(u16::MAX);
                new.add_with_line(filter(call::LISTS, count), line as u16);
                Instruction::UnpackLists(1)
            }
            Instruction::MergeKwargs(count) => {
                filter(call::KWARGS, u16::try_from(*count).unwrap_or(u16::MAX))
            }
            // Unsupported: there is only one template.
            Instruction::LoadBlocks
            | Instruction::Include(_)
            | Instruction::ExportLocals
            | Instruction::CallBlock(_)
            | Instruction::FastSuper => return refuse("a block, an include or an import"),
            other => other.clone(),
        };
        new.add_with_line(replaced, line as u16);
    }
    Ok(new)
}
