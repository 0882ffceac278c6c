//! The template language: errors, limits, dates, configuration files.

use std::time::{Duration, Instant};

use serde_json::json;

use super::*;

fn render(source: &str) -> Result<String, ChatError> {
    let messages = [Message::user("Hello"), Message::assistant("Hi")];
    ChatTemplate::from_source(source)?.render(&messages, &RenderOptions::default())
}

#[test]
fn errors_name_the_line_and_pass_the_template_s_words_on() {
    let error =
        render("{{ messages }}\n\n{{ raise_exception('Roles must alternate: ' ~ messages[0].role) }}");
    assert!(matches!(error, Err(ChatError::Refused { message }) if message == "Roles must alternate: user"));
    let nested = "{% macro m() %}{% for m in messages %}{{ raise_exception('no') }}{% endfor %}{% endmacro %}{{ m() }}";
    assert!(matches!(render(nested), Err(ChatError::Refused { message }) if message == "no"));
    for (source, line) in [
        ("a\n{% if %}", 2),
        ("a\n\n{% for x in y %}", 3),
        ("{{ 'a }}", 1),
        ("{% unknown %}", 1),
        ("a\n{% do messages %}", 2),
        ("{{ messages", 1),
    ] {
        let error = render(source).unwrap_err();
        assert!(matches!(error, ChatError::Syntax { line: l, .. } if l == line), "{source}: {error:?}");
    }
    for (source, line) in [
        ("\n{{ nothing.at.all }}", 2),
        ("\n\n{{ messages | nosuch }}", 3),
        ("{{ nosuch() }}", 1),
        ("{{ 'a'.nosuch() }}", 1),
        ("{{ 1 + 'a' }}", 1),
        ("\ntext\n{{ 1 // 0 }}", 3),
        ("{{ strftime_now('%Q') }}", 1),
        ("{{ messages | tojson(nosuch='x') }}", 1),
        ("{{ {'a': range} | tojson }}", 1),
    ] {
        let error = render(source).unwrap_err();
        assert!(matches!(error, ChatError::Render { line: l, .. } if l == line), "{source}: {error:?}");
    }
}

#[test]
fn parts_that_are_left_out_are_named() {
    for (source, feature) in [
        ("{% block a %}{% endblock %}", "block"),
        ("{% include 'a' %}", "include"),
        ("\n{% extends 'a' %}", "block, an include"),
        ("\n{{ '\\N{BULLET}' }}", "a character by its name"),
        ("{% macro m(a, b=[a]) %}{% endmacro %}", "refers to another argument"),
        ("{% with a = 1, b = a %}{% endwith %}", "refers to another argument"),
    ] {
        let error = render(source).unwrap_err();
        assert!(matches!(error, ChatError::Unsupported { line: 1.., .. }), "{source}: {error:?}");
        assert!(error.to_string().contains(feature), "{source}: {error}");
    }
}

/// Each of these requests excessive memory, time or stack.
#[test]
fn hostile_templates_end_with_a_limit() {
    let doubling = |growth: &str| {
        format!(
            "{{% set ns = namespace(x='xy') %}}{{% for i in range(60) %}}{growth}{{% endfor %}}{{{{ ns.x }}}}"
        )
    };
    let set = |expression: &str| doubling(&format!("{{% set ns.x = {expression} %}}"));
    let lists = |expression: &str| {
        format!(
            "{{% set ns = namespace(x=[1, 2]) %}}{{% for i in range(60) %}}{{% set ns.x = {expression} %}}{{% endfor %}}{{{{ ns.x == ns.x }}}}"
        )
    };
    let sources = [
        set("ns.x ~ ns.x"),
        set("ns.x + ns.x"),
        set("ns.x * 1000"),
        set("ns.x.replace('x', ns.x)"),
        set("ns.x | replace('y', ns.x)"),
        set("[ns.x, ns.x] | join(ns.x)"),
        set("ns.x.join([ns.x, ns.x])"),
        set("[ns.x, ns.x] | string"),
        set("[ns.x, ns.x] | tojson"),
        set("(ns.x ~ '\\n\\n') | indent(100000000)"),
        doubling("{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
        doubling("{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}{% set ns.x = m(ns.x) %}"),
        lists("ns.x + ns.x"),
        lists("[ns.x, ns.x]"),
        lists("{'a': ns.x, 'b': ns.x}"),
        "{{ 'a' * 1000000000000 }}".to_owned(),
        "{{ '{:>1000000000000}'.format(1) }}".to_owned(),
        "{{ '%01000000000d' % 1 }}".to_owned(),
        "{{ '%*d' % (1000000000000, 1) }}".to_owned(),
        "{{ '{:>{}}'.format(1, 1000000000000) }}".to_owned(),
        "{{ '\\t'.expandtabs(1000000000000) }}".to_owned(),
        "{{ ([0] * 1000000000000) | length }}".to_owned(),
        "{{ [[1]] | tojson(indent=1000000000000) }}".to_owned(),
        "{{ 'a\\nb' | indent(1000000000000) }}".to_owned(),
        set("ns.x.translate({120: ns.x})"),
        set("'%(a)s%(a)s' % {'a': ns.x}"),
        set("ns.x | map('replace', 'x', ns.x) | join(ns.x)"),
        "{{ 'a'.center(1000000000000) }}{{ 'a' | center(10000000000) }}".to_owned(),
        "{{ [1] | batch(1000000000000, 0) }}".to_owned(),
        "{{ [1] | slice(1000000000000) }}".to_owned(),
        set("'%s%s' % (ns.x, ns.x)"),
        set("'{0}{0}'.format(ns.x)"),
        set("'%s%s' | format(ns.x, ns.x)"),
        "{% set l = range(100000) | list %}{% for i in range(100000) %}{{ [0 < l < l < l] | length }}{% endfor %}".to_owned(),
        "{% set l = range(100000) | list %}{% for i in range(100000) %}{% set c = cycler(*l) %}{% endfor %}".to_owned(),
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}".to_owned(),
        "{% for i in range(100000) %}{{ range(100000) | list | length }}{% endfor %}".to_owned(),
        "{% for i in range(100000) %}{{ range(100000) | sort | length }}{% endfor %}".to_owned(),
        "{% set ns = namespace(x=[], y='a' * 1000000) %}{% for i in range(100000) %}\
         {% set ns.x = ns.x + [ns.y[1:]] %}{% endfor %}"
            .to_owned(),
        format!("{{% for i in range(100000) %}}{}{{% endfor %}}", "long text ".repeat(1000)),
    ];
    for source in sources {
        let start = Instant::now();
        let error = render(&source).unwrap_err();
        let shown: String = source.chars().take(200).collect();
        assert!(matches!(error, ChatError::LimitExceeded { .. }), "{shown}: {error:?}");
        assert!(start.elapsed() < Duration::from_secs(20), "{shown}");
    }
    let endless = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    assert!(matches!(render(endless), Err(ChatError::Render { .. })));
    let loops = "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}";
    assert!(render(loops).is_err());
}

/// Values nested as deep as the fuel allows are dropped, iterated and compared on the thread's own stack.
#[test]
fn deep_nesting_does_not_end_the_process() {
    for wrapped in [
        "[ns.x]",
        "{'a': ns.x}",
        "(ns.x, 1)",
        "ns.x | map('upper')",
        "ns.x[:]",
        "ns.x | items",
        "namespace(x=ns.x)",
    ] {
        let source = format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range(90000) %}}{{% set ns.x = {wrapped} %}}{{% endfor %}}done"
        );
        // Success or failure does not matter here, only termination.
        let _ = render(&source);
        let printed = source.replace("done", "{{ ns.x }}{{ ns.x == ns.x }}{{ ns.x | list }}");
        assert!(render(&printed).is_err(), "{wrapped}");
    }
    let most = engine::MAX_TEMPLATE_BYTES;
    for (open, unit, close) in [
        ("{{ 1", "+1", " }}"),
        ("{{ a", ".b", " }}"),
        ("{{ a", "[0]", " }}"),
        ("{{ a", "()", " }}"),
        ("{{ 1", "|d", " }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ ", "(", " }}"),
        ("{{ ", "[", " }}"),
        ("{{ 1", " if 1 else 1", " }}"),
        ("", "{% if 1 %}", ""),
        ("", "{% for a in b %}", ""),
        ("{{ 1", "~1", " }}"),
        ("{{ 1", " and 1", " }}"),
        ("", "{%if a%}{%elif b%}", ""),
        ("{% if a %}", "{%elif b%}", "{% endif %}"),
    ] {
        let times = (most - open.len() - close.len()) / unit.len();
        let _ = render(&format!("{open}{}{close}", unit.repeat(times)));
    }
}

#[test]
fn sizes_are_limited_at_their_edges() {
    let most = engine::MAX_TEMPLATE_BYTES;
    assert_eq!(render(&"x".repeat(most)).unwrap().len(), most);
    let error = render(&"x".repeat(most + 1)).unwrap_err();
    assert!(matches!(error, ChatError::LimitExceeded { limit, .. } if limit == most as u64));
    let prompt = |n: usize| render(&format!("{{{{ 'x' * {n} }}}}"));
    assert_eq!(prompt(8 << 20).unwrap().len(), 8 << 20);
    assert!(matches!(prompt((8 << 20) + 1), Err(ChatError::LimitExceeded { .. })));
}

#[test]
fn dates_are_those_of_the_option() {
    let template = ChatTemplate::from_source("Today: {{ strftime_now('%d %b %Y') }}").unwrap();
    let now = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_735_689_600));
    let options = RenderOptions { now, ..RenderOptions::default() };
    assert_eq!(template.render(&[], &options).unwrap(), "Today: 01 Jan 2025");
}

#[test]
fn a_configuration_brings_templates_by_name_and_tokens() {
    let config = json!({
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": false},
        "pad_token": null,
        "chat_template": [
            {"name": "default", "template": "plain{{ bos_token }}{{ eos_token }}{{ pad_token }}"},
            {"name": "tool_use", "template": "{{ tools[0].name }}{{ tools[0] | tojson }}"},
        ],
    });
    let template = ChatTemplate::from_tokenizer_config(&config.to_string(), None).unwrap().unwrap();
    assert_eq!(template.names().collect::<Vec<_>>(), ["default", "tool_use"]);
    assert_eq!(template.tokens().len(), 2);
    let mut options = RenderOptions::default();
    assert_eq!(template.render(&[], &options).unwrap(), "plain<s></s>");
    options.tools = Some(r#"[{"name": "z", "a": 1}]"#.to_owned());
    assert_eq!(template.render(&[], &options).unwrap(), r#"z{"name": "z", "a": 1}"#, "keys keep their order");
    options.template = Some("default".to_owned());
    assert_eq!(template.render(&[], &options).unwrap(), "plain<s></s>");
    options.template = Some("rag".to_owned());
    let error = template.render(&[], &options).unwrap_err().to_string();
    assert!(error.contains("`rag`") && error.contains("default, tool_use"), "{error}");
    options = RenderOptions { tools: Some("{".to_owned()), ..RenderOptions::default() };
    assert!(matches!(template.render(&[], &options), Err(ChatError::Malformed { .. })));

    let jinja = ChatTemplate::from_tokenizer_config(&config.to_string(), Some("own")).unwrap().unwrap();
    assert_eq!(jinja.render(&[], &RenderOptions::default()).unwrap(), "own");
    assert!(ChatTemplate::from_tokenizer_config("{}", None).unwrap().is_none());
    for broken in ["", "[", r#"{"chat_template": 3}"#, r#"{"chat_template": [{"name": "a"}]}"#] {
        let error = ChatTemplate::from_tokenizer_config(broken, None).unwrap_err();
        assert!(matches!(error, ChatError::Malformed { .. }), "{broken}: {error:?}");
    }
    let broken = r#"{"chat_template": "{% if %}"}"#;
    assert!(matches!(
        ChatTemplate::from_tokenizer_config(broken, None),
        Err(ChatError::Syntax { line: 1, .. })
    ));
}

#[test]
fn a_directory_brings_its_own() {
    let dir = tempfile::tempdir().unwrap();
    assert!(ChatTemplate::from_dir(dir.path()).unwrap().is_none());
    let config = json!({"bos_token": "<s>", "chat_template": "config"});
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let text = |dir| ChatTemplate::from_dir(dir).unwrap().unwrap().render(&[], &RenderOptions::default());
    assert_eq!(text(dir.path()).unwrap(), "config");
    std::fs::write(dir.path().join("chat_template.jinja"), "file {{ bos_token }}").unwrap();
    assert_eq!(text(dir.path()).unwrap(), "file <s>");
    std::fs::write(dir.path().join("chat_template.jinja"), vec![b'x'; engine::MAX_TEMPLATE_BYTES + 1])
        .unwrap();
    assert!(matches!(ChatTemplate::from_dir(dir.path()), Err(ChatError::LimitExceeded { .. })));
    std::fs::write(dir.path().join("chat_template.jinja"), [0xff, 0xfe]).unwrap();
    assert!(matches!(ChatTemplate::from_dir(dir.path()), Err(ChatError::Io { .. })));
}

#[test]
fn further_variables_reach_the_template_but_never_the_messages_place() {
    let template = ChatTemplate::from_source("{{ think }} {{ list[1].a }} {{ messages | length }}").unwrap();
    let mut options = RenderOptions::default();
    for (name, value) in
        [("think", json!(true)), ("list", json!([0, {"a": 1.5}])), ("messages", json!([1, 2, 3]))]
    {
        options.extra.insert(name.to_owned(), value);
    }
    assert_eq!(template.render(&[], &options).unwrap(), "True 1.5 0");
    // As in transformers, they override special tokens.
    let template = ChatTemplate::from_source("{{ bos_token }}{{ documents }}").unwrap();
    let template = template.with_token("bos_token", "<s>");
    assert_eq!(template.render(&[], &RenderOptions::default()).unwrap(), "<s>None");
    let options = RenderOptions::default().with_extra("bos_token", "<x>").with_extra("documents", json!([1]));
    assert_eq!(template.render(&[], &options).unwrap(), "<x>[1]");
}

/// Broken templates are errors, whatever the defect.
#[test]
fn mutated_templates_never_panic() {
    let whole = include_bytes!("../../tests/data/chat/features.jinja");
    let mut rng = trike_testkit::Rng::new(8);
    let (mut rendered, mut refused) = (0, 0);
    for _ in 0..400 {
        let mut bytes = whole.to_vec();
        for _ in 0..=rng.below(3) {
            let (at, from) = (rng.below(bytes.len()), rng.below(bytes.len()));
            match rng.below(3) {
                0 => bytes[at] = bytes[from],
                1 => {
                    bytes.remove(at);
                }
                _ => {
                    let piece = bytes[from..bytes.len().min(from + rng.below(40))].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
        }
        match render(&String::from_utf8_lossy(&bytes)) {
            Ok(_) => rendered += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(rendered > 20 && refused > 100, "{rendered} {refused}");
}
