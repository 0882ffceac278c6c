//! Any text as a chat template, and any text as what is said: rendering ends, and nothing that is said becomes a
//! special token.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trike_text::chat::{ChatTemplate, Message, RenderOptions};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (template, said) = text.split_once('\0').unwrap_or((text, "Hello"));
    let _ = ChatTemplate::from_tokenizer_config(text, None);
    if let Ok(template) = ChatTemplate::from_source(template) {
        let template = template.with_token("bos_token", "<s>").with_token("eos_token", "</s>");
        let messages = [Message::system("Be brief."), Message::user(said), Message::assistant("Hi.")];
        let _ = template.render(&messages, &RenderOptions::default());
    }
});
