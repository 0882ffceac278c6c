//! `--device` with a list: the layers of a model on two devices. The software driver serves as both, each with its own queue and
//! memory.

use serde_json::Value;

use crate::{
    device::software,
    harness::{Trike, tiny},
};

/// The software driver opened twice: its number, and the next one.
fn pair() -> Option<[String; 2]> {
    let first = software()?;
    let (runtime, index) = first.split_once(':').expect("a number");
    let index: usize = index.parse().expect("a number");
    Some([first.to_owned(), format!("{runtime}:{}", index + 1)])
}

/// Layers and width of the model of every test.
fn sizes() -> (u64, u64) {
    let config = std::fs::read(std::path::Path::new(&tiny()).join("config.json")).expect("a file");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let of = |name: &str| config[name].as_u64().expect("a number");
    (of("num_hidden_layers"), of("hidden_size"))
}

#[test]
fn a_text_from_two_devices_is_that_from_one() {
    let Some([first, second]) = pair() else { return };
    let trike = Trike::new();
    let list = format!("{first},{second}");
    let args =
        ["run", "-m", &tiny(), "-p", "Once upon a time", "-n", "16", "--temperature", "0", "--json", "-q"];
    let one = trike.json(&[&args[..], &["--device", &first]].concat());
    let two = trike.json(&[&args[..], &["--device", &list]].concat());
    assert_eq!((&one["ids"], &one["text"]), (&two["ids"], &two["text"]));
    let of = |json: &Value, name: &str| json[name].as_u64().unwrap_or_else(|| panic!("{name}: {json}"));
    let count = |name: &str| two[name].as_array().expect("a list").len() as u64;
    // The residual stream of each token is transferred once, that of the prompt at once; the last token is not run.
    let (_, hidden) = sizes();
    let device = &two["device"];
    let tokens = count("prompt_ids") + count("ids") - 1;
    assert_eq!(
        (of(device, "transfers"), of(device, "transferred_bytes")),
        (count("ids"), tokens * hidden * 4)
    );
    assert_eq!((of(device, "captures"), of(device, "replays")), (0, 0));
    let each = device["devices"].as_array().expect("two");
    for (used, name) in each.iter().zip([&first, &second]) {
        assert!(used["name"].as_str().expect("a name").starts_with(name.as_str()), "{used}");
        assert!(of(used, "peak_bytes") < of(&one["device"], "peak_bytes"), "{used} {one}");
        assert!(of(used, "reserved_bytes") >= of(used, "unused_bytes"), "{used}");
    }
    for name in ["peak_bytes", "uploads", "uploaded_bytes", "read_backs", "read_bytes", "transferred_bytes"] {
        assert_eq!(each.iter().map(|used| of(used, name)).sum::<u64>(), of(device, name), "{name}");
    }
    // Only the second device reads logits back, and only it receives transfers.
    assert_eq!((of(&each[0], "read_backs"), of(&each[0], "transfers")), (0, 0));
    assert_eq!(of(&each[1], "read_backs"), count("ids"));
    assert_eq!(one["device"]["devices"], Value::Null);
    assert_eq!(of(&one["device"], "transfers"), 0);
    // The environment variable accepts a list too, with counts.
    let (layers, _) = sizes();
    let mut command = trike.command(&args);
    let uneven = format!("{first}={},{second}=1", layers - 1);
    let output = command.env("TRIKE_DEVICE", uneven).output().expect("it runs");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["ids"], one["ids"]);
    let peaks: Vec<u64> = json["device"]["devices"]
        .as_array()
        .expect("two")
        .iter()
        .map(|used| of(used, "peak_bytes"))
        .collect();
    assert!(peaks[0] > of(&each[0], "peak_bytes") && peaks[1] < of(&each[1], "peak_bytes"), "{peaks:?}");
}

#[test]
fn every_command_takes_a_list() {
    let Some([first, second]) = pair() else { return };
    let trike = Trike::new();
    let list = format!("{first},{second}");
    let ids = [0, 405, 422, 17, 3, 500];
    assert_eq!(
        trike.logits(&tiny(), &ids, &["--device", &list]),
        trike.logits(&tiny(), &ids, &["--device", &first])
    );
    let text = trike.write("text", "Once upon a time, there was a little girl named Lily.");
    let score = |device: &str| {
        trike.json(&["perplexity", "-m", &tiny(), "-f", &text, "--json", "-q", "--device", device])["nats"]
            .clone()
    };
    assert_eq!(score(&list), score(&first));
    let template = trike.write("template", "{{ messages[-1].content }}");
    let answer = |device: &str| {
        let mut command = trike.command(&[
            "chat",
            "-m",
            &tiny(),
            "--chat-template",
            &template,
            "-n",
            "8",
            "-q",
            "--temperature",
            "0",
            "--device",
            device,
        ]);
        let questions = std::fs::File::open(trike.write("questions", "Once upon a time\n")).expect("a file");
        let output = command.stdin(questions).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    assert_eq!(answer(&list), answer(&first));
    let table = trike.stdout(&["bench", "-m", &tiny(), "-p", "4", "-n", "2", "-r", "1", "--device", &list]);
    for part in ["| decode 2", "peak device memory", &first, &second, "reserved and unused"] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn the_plan_of_two_devices_adds_up() {
    let Some([first, second]) = pair() else { return };
    let trike = Trike::new();
    let (layers, _) = sizes();
    let list = format!("{first},{second}");
    let inspect = ["inspect", &tiny(), "--memory"];
    let plan = trike.json(&[&inspect[..], &["--json", "--device", &list]].concat());
    let each = plan["devices"].as_array().expect("two");
    let of = |json: &Value, name: &str| json[name].as_u64().unwrap_or_else(|| panic!("{name}: {json}"));
    let sum = |name: &str| each.iter().map(|device| of(device, name)).sum::<u64>();
    assert_eq!((each.len(), sum("layers"), of(&each[1], "first_layer")), (2, layers, of(&each[0], "layers")));
    // Keys and values of each layer are on one device; weights too, except a tied embedding.
    assert_eq!(sum("cache"), of(&plan, "cache"));
    assert!(sum("weights") >= of(&plan, "weights"), "{plan}");
    for device in each {
        assert_eq!(of(device, "total"), of(device, "weights") + of(device, "cache") + of(device, "scratch"));
    }
    let counts = format!("{first}=1,{second}={}", layers - 1);
    let text = trike.stdout(&[&inspect[..], &["--device", &counts]].concat());
    for part in ["layers", "0-0", &format!("1-{}", layers - 1), &first, &second] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The plan is close to the memory of a run.
    let args = ["run", "-m", &tiny(), "-p", "x", "--kv", "f16", "--json", "-q", "--device", &list];
    let used = trike.json(&args);
    for (device, planned) in used["device"]["devices"].as_array().expect("two").iter().zip(each) {
        assert!(of(device, "peak_bytes") <= of(planned, "total") * 11 / 10, "{device}, planned {planned}");
    }
    // Without --memory there is nothing to show.
    trike.fails(2, &["inspect", &tiny(), "--device", &list]);
}

#[test]
fn lists_that_cannot_be_are_refused() {
    let trike = Trike::new();
    let run = ["run", "-m", &tiny(), "-p", "x", "--device"];
    for (list, part) in [
        ("wgpu:0,gpu", "unknown device \"gpu\""),
        ("wgpu:0,cuda:first", "unknown device \"cuda:first\""),
        ("wgpu:0,", "unknown device \"\""),
        ("wgpu:0,cpu", "GPUs with a number"),
        ("wgpu:0,wgpu:0", "each device once"),
        ("wgpu:0=1,wgpu:1", "after every device or after none"),
        ("wgpu:0=2", "two or more"),
    ] {
        let error = trike.fails(2, &[&run[..], &[list]].concat());
        assert!(error.contains(part), "{list}: {error}");
    }
    let Some([first, second]) = pair() else { return };
    // One device of the list is missing.
    for list in [format!("{first},wgpu:4242"), format!("wgpu:4242,{first}")] {
        for command in [&run[..], &["inspect", &tiny(), "--memory", "--device"]] {
            let error = trike.fails(2, &[command, &[&list]].concat());
            assert!(
                error.contains("device wgpu:4242: not found") && error.contains("trike doctor"),
                "{error}"
            );
        }
    }
    // Layer counts that do not match the model.
    let (layers, _) = sizes();
    let list = format!("{first}=1,{second}={layers}");
    let error = trike.fails(1, &[&run[..], &[&list]].concat());
    assert!(error.contains("layers per device") && error.contains(&format!("{layers} layers")), "{error}");
}
