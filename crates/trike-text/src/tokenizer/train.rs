//! Training of byte-level vocabularies.

use std::collections::BTreeSet;

use tokenizers::{
    AddedToken,
    models::{
        TrainerWrapper,
        bpe::{BPE, BpeTrainer},
    },
    pre_tokenizers::byte_level::ByteLevel,
};

use super::{
    PreTokenizer, Tokenizer, TokenizerError,
    hf::byte_level_alphabet,
    limits::{check_token, check_tokens, check_training_text},
};

/// Pairs that occur less often do not become tokens, as in GPT-2's trainers.
const MIN_FREQUENCY: u64 = 2;
/// Maximum bytes per token: runs of one character would double with every merge.
const LONGEST: usize = 64;

/// Training of a byte-level BPE vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpeTraining {
    /// Total number of tokens, including the 256 bytes and the special tokens.
    pub vocab_size: usize,
    /// Special tokens, which get the first ids. Texts are split at their occurrences, so none is learned as text.
    pub special_tokens: Vec<String>,
    /// The pre-tokenizer, whose pieces confine merges.
    pub pre: PreTokenizer,
}

/// A trained tokenizer.
#[derive(Clone, Debug)]
pub struct TrainedBpe {
    /// The content of the `tokenizer.json`.
    pub json: Vec<u8>,
    /// The tokenizer that this file contains.
    pub tokenizer: Tokenizer,
}

impl BpeTraining {
    /// Trains a byte-level BPE vocabulary (Sennrich et al., 1508.07909; on bytes as in GPT-2): starting from the bytes, the most
    /// frequent pair of tokens becomes a token, ties by the lowest ids. The result depends only on the texts, not on their order or
    /// on threads. It has fewer tokens than requested when no pair occurs twice any more. Every text is recovered exactly by
    /// [decoding](Tokenizer::decode) its [tokens](Tokenizer::encode_literal). Set BOS and EOS with [`Tokenizer::with_special`].
    ///
    /// # Errors
    ///
    /// [`TokenizerError::NoText`] if all texts are empty, [`TokenizerError::VocabTooSmall`] for a vocabulary without room for the
    /// bytes and the special tokens, [`TokenizerError::Malformed`] for a special token that is empty, repeated, or the name of a
    /// byte in the file, [`TokenizerError::LimitExceeded`] for a vocabulary of more than 4,194,304 tokens or texts of more than
    /// 2,147,483,647 bytes in total, since pairs are counted in i32.
    ///
    /// ```
    /// use trike_text::tokenizer::{BpeTraining, PreTokenizer};
    ///
    /// let training = BpeTraining {
    ///     vocab_size: 260,
    ///     special_tokens: vec!["<|endoftext|>".to_owned()],
    ///     pre: PreTokenizer::Gpt2,
    /// };
    /// let trained = training.train(["the cat", "the hat", "the bat<|endoftext|>"])?;
    /// let tokenizer = trained.tokenizer;
    /// // Merges of `a t`, `h e` and `t he` follow the special token and the bytes.
    /// let ids = tokenizer.encode("the<|endoftext|>at", false)?;
    /// assert_eq!(ids, [259, 0, 257]);
    /// assert_eq!(tokenizer.decode(&tokenizer.encode("h\u{e9} \u{1f642}", false)?)?, "h\u{e9} \u{1f642}");
    /// # Ok::<(), trike_text::tokenizer::TokenizerError>(())
    /// ```
    pub fn train<I>(&self, texts: I) -> Result<TrainedBpe, TokenizerError>
    where
        I: IntoIterator<IntoIter: Send, Item: AsRef<str> + Send>,
    {
        self.check()?;
        let specials: Vec<AddedToken> = self
            .special_tokens
            .iter()
            .map(|content| AddedToken::from(content.clone(), true).normalized(false))
            .collect();
        let trainer = BpeTrainer::builder()
            .show_progress(false)
            .vocab_size(self.vocab_size)
            .min_frequency(MIN_FREQUENCY)
            .max_token_length(Some(LONGEST))
            .initial_alphabet(byte_level_alphabet().into_keys().collect())
            .special_tokens(specials)
            .build();
        let (mut bytes, mut over) = (0u64, None);
        let texts = texts.into_iter().map_while(|text| {
            bytes += text.as_ref().len() as u64;
            over = check_training_text(bytes).err();
            over.is_none().then(|| cut(text.as_ref(), &self.special_tokens))
        });
        let mut encoder = tokenizers::Tokenizer::new(BPE::default());
        encoder.with_pre_tokenizer(Some(self.pre.byte_level()?)).with_decoder(Some(ByteLevel::default()));
        encoder
            .train(&mut TrainerWrapper::BpeTrainer(trainer), texts.flatten())
            .map_err(TokenizerError::Vocabulary)?;
        match over {
            Some(error) => return Err(error),
            None if bytes == 0 => return Err(TokenizerError::NoText),
            None => {}
        }
        let json = encoder.to_string(true).map_err(TokenizerError::Vocabulary)?.into_bytes();
        let tokenizer = Tokenizer::from_hf_json_bytes(&json)?;
        Ok(TrainedBpe { json, tokenizer })
    }

    fn check(&self) -> Result<(), TokenizerError> {
        check_tokens(self.vocab_size as u64)?;
        let needed = 256 + self.special_tokens.len();
        if self.vocab_size < needed {
            let special = self.special_tokens.len();
            return Err(TokenizerError::VocabTooSmall { requested: self.vocab_size, needed, special });
        }
        let alphabet = byte_level_alphabet();
        let mut seen = BTreeSet::new();
        for (index, token) in self.special_tokens.iter().enumerate() {
            check_token(token.len())?;
            // The file represents bytes by characters of this alphabet, so another token could get the same name.
            let names_bytes = token.chars().all(|c| alphabet.contains_key(&c))
                && (token.chars().count() == 1 || !token.is_ascii());
            if token.is_empty() || names_bytes || !seen.insert(token) {
                return Err(TokenizerError::malformed(
                    format!("special token {index}"),
                    "a text that is neither empty, nor repeated, nor the name of bytes",
                    format!("{token:?}"),
                ));
            }
        }
        Ok(())
    }
}

/// The parts of a text between special tokens; of two that start at the same byte, the longer one wins.
fn cut(text: &str, special_tokens: &[String]) -> Vec<String> {
    let (mut parts, mut rest) = (Vec::new(), text);
    loop {
        let found = special_tokens.iter().filter_map(|token| Some((rest.find(token.as_str())?, token.len())));
        let Some((at, len)) = found.min_by_key(|&(at, len)| (at, std::cmp::Reverse(len))) else { break };
        parts.push(rest[..at].to_owned());
        rest = &rest[at + len..];
    }
    parts.push(rest.to_owned());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_testkit::Rng;

    fn training(vocab_size: usize, special_tokens: &[&str]) -> BpeTraining {
        let special_tokens = special_tokens.iter().map(|&token| token.to_owned()).collect();
        BpeTraining { vocab_size, special_tokens, pre: PreTokenizer::Gpt2 }
    }

    /// Sentences of few words, so that all their character pairs are frequent.
    fn texts(count: usize) -> Vec<String> {
        let words = ["the", "then", "other", "mother", "her", "there", "h\u{e9}", "\u{1f642}", "123", "not"];
        let mut rng = Rng::new(5);
        let mut sentence = || {
            let words: Vec<&str> = (0..12).map(|_| words[rng.below(words.len())]).collect();
            words.join(" ") + ".\n"
        };
        (0..count).map(|_| sentence()).collect()
    }

    #[test]
    fn ids_are_specials_bytes_and_merges() {
        let trained = training(280, &["<s>", "</s>"]).train(texts(200)).unwrap();
        let tokenizer = trained.tokenizer;
        assert_eq!(tokenizer.vocab_size(), 280);
        assert_eq!(tokenizer.encode("</s><s>", false).unwrap(), [1, 0]);
        assert!(tokenizer.encode_literal("<s>").unwrap().len() > 1, "text is not a special token");
        assert_eq!(tokenizer.token_bytes(2).unwrap(), b"!");
        assert_eq!(tokenizer.encode(" the", false).unwrap().len(), 1);
        let again = Tokenizer::from_bytes(&trained.json).unwrap();
        assert_eq!(again.encode("the other", false).unwrap(), tokenizer.encode("the other", false).unwrap());
    }

    /// From the definition: the most frequent pair, ties by the lowest ids.
    #[test]
    fn merges_are_those_of_the_definition() {
        let text = "ababab abab bcbc bc bc cab cab";
        let alphabet = byte_level_alphabet();
        let mut names: Vec<char> = alphabet.keys().copied().collect();
        names.sort_unstable();
        let id = |byte: u8| names.iter().position(|c| alphabet[c] == byte).unwrap();
        // Pieces with their preceding space, as in GPT-2.
        let mut words: Vec<Vec<usize>> = Vec::new();
        for (index, word) in text.split(' ').enumerate() {
            let space = (index > 0).then(|| id(b' '));
            words.push(space.into_iter().chain(word.bytes().map(id)).collect());
        }
        let mut want = Vec::new();
        for next in 256.. {
            let mut counts = std::collections::BTreeMap::new();
            for pair in words.iter().flat_map(|word| word.windows(2)) {
                *counts.entry((pair[0], pair[1])).or_insert(0u32) += 1;
            }
            let best = counts.into_iter().max_by_key(|&(pair, count)| (count, std::cmp::Reverse(pair)));
            let Some((pair, _)) = best.filter(|(_, count)| *count >= 2) else { break };
            want.push(pair);
            for word in &mut words {
                let mut at = 0;
                while at + 1 < word.len() {
                    if (word[at], word[at + 1]) == pair {
                        word.splice(at..at + 2, [next]);
                    }
                    at += 1;
                }
            }
        }
        let trained = training(400, &[]).train([text]).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&trained.json).unwrap();
        let ids =
            |token: &serde_json::Value| json["model"]["vocab"][token.as_str().unwrap()].as_u64().unwrap();
        let got: Vec<(usize, usize)> = json["model"]["merges"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pair| (ids(&pair[0]) as usize, ids(&pair[1]) as usize))
            .collect();
        assert_eq!(got, want);
        assert_eq!(trained.tokenizer.vocab_size(), 256 + want.len(), "no pair is left");
    }

    #[test]
    fn the_same_texts_give_the_same_file() {
        let texts = texts(300);
        let want = training(420, &["<|endoftext|>"]).train(&texts).unwrap().json;
        for _ in 0..4 {
            let reversed = texts.iter().rev();
            assert!(training(420, &["<|endoftext|>"]).train(reversed).unwrap().json == want);
        }
    }

    #[test]
    fn every_text_comes_back() {
        for pre in [PreTokenizer::Gpt2, PreTokenizer::LlamaBpe, PreTokenizer::Qwen2] {
            let trained = BpeTraining { pre, ..training(350, &["<s>"]) }.train(texts(100)).unwrap();
            let mut rng = Rng::new(9);
            for _ in 0..300 {
                let text: String = (0..rng.below(30))
                    .filter_map(|_| {
                        let most = [0x80, 0x800, 0x1_0000, 0x11_0000][rng.below(4)];
                        char::from_u32(rng.below(most) as u32)
                    })
                    .collect();
                let ids = trained.tokenizer.encode_literal(&text).unwrap();
                assert_eq!(trained.tokenizer.decode(&ids).unwrap(), text, "{pre:?}");
            }
        }
    }

    #[test]
    fn special_tokens_are_not_learned_as_text() {
        let text = "<s>abc</s>".repeat(50);
        let trained = training(300, &["<s>", "</s>"]).train([text]).unwrap();
        // Only the merges of `abc`: `a b` and `ab c`.
        assert_eq!(trained.tokenizer.vocab_size(), 2 + 256 + 2);
        assert_eq!(cut("a<s><s>b</s>", &["<s>".to_owned(), "</s>".to_owned()]), ["a", "", "b", ""]);
        assert_eq!(cut("x<ab>y", &["<a".to_owned(), "<ab>".to_owned()]), ["x", "y"]);
    }

    #[test]
    fn what_cannot_be_trained_is_refused() {
        for texts in [vec![], vec![""], vec!["", ""]] {
            assert!(matches!(training(300, &[]).train(texts), Err(TokenizerError::NoText)));
        }
        let small = training(257, &["<s>", "</s>"]).train(["text"]);
        let needs = TokenizerError::VocabTooSmall { requested: 257, needed: 258, special: 2 };
        assert_eq!(small.err().unwrap().to_string(), needs.to_string());
        assert!(training(258, &["<s>", "</s>"]).train(["text"]).is_ok());
        let large = training(usize::MAX, &[]).train(["text"]);
        assert!(matches!(large, Err(TokenizerError::LimitExceeded { .. })));
        for wrong in [&[""][..], &["<s>", "<s>"], &["a"], &["\u{120}the"]] {
            let refused = training(300, wrong).train(["text"]);
            assert!(matches!(refused, Err(TokenizerError::Malformed { .. })), "{wrong:?}");
        }
    }
}
