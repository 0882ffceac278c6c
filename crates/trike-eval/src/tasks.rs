//! Multiple-choice tasks, answered by likelihood.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use trike_llm::Model;
use trike_nn::{KvPrecisions, KvSpec};

use crate::{EvalError, perplexity::log_sum_exp};

/// A multiple-choice question: a context and its possible continuations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The context; may be empty.
    pub context: String,
    /// The continuations, including the white space that separates them from the context.
    pub options: Vec<String>,
    /// Index of the correct continuation.
    pub answer: usize,
}

/// Score of a model on a task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskScore {
    /// Questions answered.
    pub questions: usize,
    /// Questions left out because an option exceeds the model's context.
    pub too_long: usize,
    /// Fraction answered correctly when the option with the largest log-likelihood is chosen; ties count as wrong.
    pub accuracy: f64,
    /// Standard error of [`accuracy`](Self::accuracy), `sqrt(p (1 - p) / n)`.
    pub accuracy_error: f64,
    /// Accuracy with log-likelihoods divided by the byte length of the option.
    pub normalized: f64,
    /// Standard error of [`normalized`](Self::normalized).
    pub normalized_error: f64,
    /// Expected accuracy of random guessing.
    pub chance: f64,
}

impl TaskScore {
    /// The unweighted mean over tasks (as BLiMP is reported), with the standard error for independent tasks,
    /// `sqrt(sum e^2) / n`; question counts are summed. `None` for no tasks.
    ///
    /// ```
    /// use trike_eval::TaskScore;
    ///
    /// let score = |accuracy| TaskScore {
    ///     questions: 100, too_long: 1, accuracy, accuracy_error: 0.03,
    ///     normalized: 0.5, normalized_error: 0.04, chance: 0.5,
    /// };
    /// let mean = TaskScore::mean(&[score(0.6), score(0.8)]).unwrap();
    /// assert_eq!((mean.questions, mean.too_long), (200, 2));
    /// assert!((mean.accuracy - 0.7).abs() < 1e-12 && (mean.accuracy_error - 0.03 / 2f64.sqrt()).abs() < 1e-12);
    /// ```
    #[must_use]
    pub fn mean(scores: &[Self]) -> Option<Self> {
        let n = scores.len() as f64;
        let mean = |of: fn(&Self) -> f64| scores.iter().map(of).sum::<f64>() / n;
        let error = |of: fn(&Self) -> f64| scores.iter().map(|s| of(s).powi(2)).sum::<f64>().sqrt() / n;
        (!scores.is_empty()).then(|| Self {
            questions: scores.iter().map(|s| s.questions).sum(),
            too_long: scores.iter().map(|s| s.too_long).sum(),
            accuracy: mean(|s| s.accuracy),
            accuracy_error: error(|s| s.accuracy_error),
            normalized: mean(|s| s.normalized),
            normalized_error: error(|s| s.normalized_error),
            chance: mean(|s| s.chance),
        })
    }
}

/// Parses questions, one JSON object per line, in any of these formats:
///
/// | task | fields |
/// |---|---|
/// | any, MMLU | `context` or `question`, `choices` (texts), `answer` (index) |
/// | BLiMP | `sentence_good`, `sentence_bad` |
/// | HellaSwag | `ctx`, `endings`, `label` |
/// | PIQA | `goal`, `sol1`, `sol2`, `label` |
/// | ARC | `question` with `stem` and `choices` (`label`, `text`), `answerKey` |
///
/// ```
/// use std::path::Path;
/// use trike_eval::read_questions;
///
/// let line = r#"{"sentence_good": "Cats sleep.", "sentence_bad": "Cats sleeps."}"#;
/// let questions = read_questions(Path::new("blimp.jsonl"), line)?;
/// assert_eq!((questions[0].options.len(), questions[0].answer), (2, 0));
/// # Ok::<(), trike_eval::EvalError>(())
/// ```
///
/// # Errors
///
/// [`EvalError::Question`] for a line in none of these formats; [`EvalError::NoQuestions`].
pub fn read_questions(path: &Path, text: &str) -> Result<Vec<Question>, EvalError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let questions: Vec<Question> = lines
        .map(|(i, line)| {
            let wrong = |expected: String, got: String| EvalError::Question {
                path: path.to_owned(),
                line: i + 1,
                expected,
                got,
            };
            let value: Value = serde_json::from_str(line)
                .map_err(|e| wrong("a JSON object".to_owned(), format!("text that is not JSON ({e})")))?;
            let question = question(&value).ok_or_else(|| {
                let keys =
                    value.as_object().map(|o| o.keys().map(String::as_str).collect::<Vec<_>>().join(", "));
                wrong(
                    "a question: {context, choices, answer}, or a line of BLiMP, HellaSwag, PIQA, ARC or MMLU".to_owned(),
                    keys.map_or("no object".to_owned(), |keys| format!("an object with {keys}")),
                )
            })?;
            let choices = question.options.len();
            if choices < 2 {
                return Err(wrong("two choices or more".to_owned(), choices.to_string()));
            }
            if question.answer >= choices {
                return Err(wrong(format!("an answer from 0 to {}", choices - 1), question.answer.to_string()));
            }
            if let Some(empty) = question.options.iter().position(|option| option.trim().is_empty()) {
                return Err(wrong("choices with text".to_owned(), format!("an empty choice {empty}")));
            }
            Ok(question)
        })
        .collect::<Result<_, _>>()?;
    if questions.is_empty() {
        return Err(EvalError::NoQuestions { path: path.to_owned() });
    }
    Ok(questions)
}

fn question(value: &Value) -> Option<Question> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let texts = |value: &Value| -> Option<Vec<String>> {
        value.as_array()?.iter().map(|v| v.as_str().map(|s| format!(" {}", s.trim_start()))).collect()
    };
    let index = |key: &str| -> Option<usize> {
        let value = value.get(key)?;
        value.as_u64().map(|n| n as usize).or_else(|| value.as_str()?.parse().ok())
    };
    if let (Some(good), Some(bad)) = (text("sentence_good"), text("sentence_bad")) {
        return Some(Question { context: String::new(), options: vec![good, bad], answer: 0 });
    }
    if let (Some(context), Some(endings)) = (text("ctx"), value.get("endings")) {
        return Some(Question { context, options: texts(endings)?, answer: index("label")? });
    }
    if let (Some(context), Some(first), Some(second)) = (text("goal"), text("sol1"), text("sol2")) {
        let options = vec![format!(" {first}"), format!(" {second}")];
        return Some(Question { context, options, answer: index("label")? });
    }
    if let Some(stem) = value.pointer("/question/stem").and_then(Value::as_str) {
        let choices = value.pointer("/question/choices")?.as_array()?;
        let key = value.get("answerKey")?.as_str()?;
        let option = |c: &Value| c.get("text")?.as_str().map(|s| format!(" {s}"));
        return Some(Question {
            context: stem.to_owned(),
            options: choices.iter().map(option).collect::<Option<_>>()?,
            answer: choices.iter().position(|c| c.get("label").and_then(Value::as_str) == Some(key))?,
        });
    }
    Some(Question {
        // MMLU names the context a question.
        context: text("context").or_else(|| text("question"))?,
        options: texts(value.get("choices")?)?,
        answer: index("answer")?,
    })
}

/// Answers multiple-choice questions by the likelihood of each choice after its context. `kv` is the precision of cached keys and
/// values, the model's default when `None`. `progress` is called with the questions done and in total.
///
/// # Errors
///
/// [`EvalError::NothingToScore`] when no question fits the context, and as [`score`](crate::score()).
pub fn answer(
    model: &dyn Model,
    questions: &[Question],
    kv: Option<KvPrecisions>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<TaskScore, EvalError> {
    let kv = kv.unwrap_or(model.default_kv().into());
    let (mut right, mut normalized, mut answered, mut chance) = (0usize, 0usize, 0usize, 0f64);
    for (done, question) in questions.iter().enumerate() {
        let mut scores = Vec::with_capacity(question.options.len());
        for option in &question.options {
            match log_likelihood(model, kv, &question.context, option)? {
                Some(score) => scores.push((score, score / option.trim().len() as f64)),
                None => break,
            }
        }
        if scores.len() == question.options.len() {
            answered += 1;
            chance += 1.0 / scores.len() as f64;
            let others = |i: usize| i != question.answer;
            let best = scores[question.answer];
            right += usize::from((0..scores.len()).filter(|&i| others(i)).all(|i| scores[i].0 < best.0));
            normalized += usize::from((0..scores.len()).filter(|&i| others(i)).all(|i| scores[i].1 < best.1));
        }
        progress(done + 1, questions.len());
    }
    if answered == 0 {
        return Err(EvalError::NothingToScore);
    }
    let n = answered as f64;
    let error = |p: f64| (p * (1.0 - p) / n).sqrt();
    let (accuracy, normalized) = (right as f64 / n, normalized as f64 / n);
    Ok(TaskScore {
        questions: answered,
        too_long: questions.len() - answered,
        accuracy,
        accuracy_error: error(accuracy),
        normalized,
        normalized_error: error(normalized),
        chance: chance / n,
    })
}

/// Natural logarithm of the probability of `option` after `context`; `None` when together they exceed the model's context.
fn log_likelihood(
    model: &dyn Model,
    kv: KvPrecisions,
    context: &str,
    option: &str,
) -> Result<Option<f64>, EvalError> {
    let tokenizer = model.tokenizer()?;
    let all = tokenizer.encode(&format!("{context}{option}"), tokenizer.adds_bos())?;
    let before = tokenizer.encode(context, tokenizer.adds_bos())?;
    // The last token of the context may change when text is appended. The first token of a sequence is not predicted.
    let start = all.iter().zip(&before).take_while(|(a, b)| a == b).count().max(1);
    if all.len() <= start || all.len() > model.config().spec.context {
        return Ok(None);
    }
    let mut sum = 0f64;
    let inputs = &all[..all.len() - 1];
    model.logits_with(inputs, &KvSpec::new(kv, inputs.len()), &mut |i, row| {
        if i + 1 >= start {
            sum += f64::from(row[all[i + 1] as usize]) - log_sum_exp(row);
        }
    })?;
    Ok(Some(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read() {
        let lines = [
            (r#"{"context": "A", "choices": ["b", "c"], "answer": 1}"#, "A", " b", 1),
            (r#"{"question": "A", "choices": ["b", "c"], "answer": 1, "subject": "s"}"#, "A", " b", 1),
            (r#"{"sentence_good": "x y", "sentence_bad": "y x", "UID": "u"}"#, "", "x y", 0),
            (r#"{"ctx": "A", "endings": ["b", "c", "d"], "label": "2"}"#, "A", " b", 2),
            (r#"{"goal": "A", "sol1": "b", "sol2": "c", "label": 0}"#, "A", " b", 0),
            (
                r#"{"question": {"stem": "A", "choices": [{"label": "1", "text": "b"}, {"label": "2", "text": "c"}]}, "answerKey": "2"}"#,
                "A",
                " b",
                1,
            ),
        ];
        let text = lines.map(|(line, ..)| line).join("\n\n");
        let questions = read_questions(Path::new("t"), &text).unwrap();
        for (question, (_, context, first, answer)) in questions.iter().zip(lines) {
            assert_eq!(
                (question.context.as_str(), question.options[0].as_str(), question.answer),
                (context, first, answer)
            );
        }
        for (bad, part) in [
            ("{", "line 1"),
            ("[]", "no object"),
            (r#"{"ctx": "A"}"#, "ctx"),
            (r#"{"context": "A", "choices": ["b", "c"], "answer": 2}"#, "an answer from 0 to 1, got 2"),
            (r#"{"context": "A", "choices": ["b"], "answer": 0}"#, "two choices or more, got 1"),
            (r#"{"context": "A", "choices": ["b", " "], "answer": 0}"#, "an empty choice 1"),
            ("hello", "not JSON"),
            (" \n\n", "no questions"),
        ] {
            let error = read_questions(Path::new("t"), bad).unwrap_err().to_string();
            assert!(error.contains(part), "{bad}: {error}");
        }
    }
}
