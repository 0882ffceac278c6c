//! `trike explain`.

use crate::topics::{TOPICS, Topic};

/// The section of a topic, or the list of topics.
pub(super) fn text(topic: Option<Topic>) -> String {
    if let Some(topic) = topic {
        return topic.text();
    }
    let width = TOPICS.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let lines = TOPICS.iter().map(|(name, _, heading)| format!("{name:width$}  {heading}\n"));
    lines.collect::<String>() + "\ntrike explain TOPIC\n"
}
