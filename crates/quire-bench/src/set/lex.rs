//! Lexical analysis: a program's text in tokens.

use anyhow::{Context, Result, ensure};

use crate::set::Work;

/// What is taken apart: C of this project.
const PIECE: &str = include_str!("../../../quire-preload-provide/tests/programs/stress.c");
/// How often the text has it.
const PIECES: usize = 100;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Blank,
    Comment,
    Name,
    Number,
    /// Between quotes, double or single.
    Quoted,
    Sign,
}

/// A token: what, and where in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// The token at a place of the text, which is not its end.
fn token(text: &[u8], start: usize) -> Token {
    let rest = &text[start..];
    let run = |of: fn(u8) -> bool| rest.iter().take_while(|byte| of(**byte)).count();
    let (kind, length) = match rest {
        [b'/', b'/', ..] => (Kind::Comment, run(|byte| byte != b'\n')),
        [b'/', b'*', ..] => (Kind::Comment, comment(rest)),
        [quote @ (b'"' | b'\''), ..] => (Kind::Quoted, quoted(rest, *quote)),
        [first, ..] if first.is_ascii_whitespace() => {
            (Kind::Blank, run(|b| b.is_ascii_whitespace()))
        }
        [first, ..] if first.is_ascii_digit() => (Kind::Number, run(|b| is_name(b) || b == b'.')),
        [first, ..] if is_name(*first) => (Kind::Name, run(is_name)),
        _ => (Kind::Sign, 1),
    };
    Token {
        kind,
        start,
        end: start + length,
    }
}

/// The length of a comment that begins here, to its end or that of the text.
fn comment(rest: &[u8]) -> usize {
    let ends = rest.windows(2).skip(2).position(|two| two == b"*/");
    ends.map_or(rest.len(), |at| at + 4)
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// A text that is taken apart.
pub struct Lexing {
    text: String,
    tokens: Vec<Token>,
}

impl Lexing {
    /// A text that is always the same.
    pub fn new() -> Lexing {
        Lexing {
            text: PIECE.repeat(PIECES),
            tokens: Vec::new(),
        }
    }

    /// Whether a token is what it is said to be, by itself.
    fn is_right(&self, token: Token) -> bool {
        let text = &self.text[token.start..token.end];
        let next = self.text[token.end..].bytes().next();
        let is_whole = |of: fn(u8) -> bool| text.bytes().all(of) && !next.is_some_and(of);
        match token.kind {
            Kind::Blank => is_whole(|byte| byte.is_ascii_whitespace()),
            Kind::Name => is_whole(is_name) && !text.starts_with(|c: char| c.is_ascii_digit()),
            Kind::Number => text.starts_with(|c: char| c.is_ascii_digit()),
            Kind::Comment => match text.strip_prefix("/*") {
                Some(rest) => rest.find("*/") == Some(rest.len() - 2),
                None => text.starts_with("//") && !text.contains('\n'),
            },
            Kind::Quoted => {
                text.len() >= 2 && text.as_bytes()[0] == text.as_bytes()[text.len() - 1]
            }
            Kind::Sign => text.len() == 1 && text.bytes().all(|byte| byte.is_ascii_punctuation()),
        }
    }
}

impl Work for Lexing {
    fn operate(&mut self) -> Result<()> {
        self.tokens = Vec::new();
        let text = self.text.as_bytes();
        let mut at = 0;
        while at < text.len() {
            let token = token(text, at);
            at = token.end;
            self.tokens.push(token);
        }
        Ok(())
    }

    /// The tokens follow each other through the whole text, each is what it is said to
    /// be, and each piece has the same ones.
    fn check(&mut self) -> Result<()> {
        let mut at = 0;
        for (number, token) in self.tokens.iter().enumerate() {
            ensure!(token.start == at, "token {number} does not begin at {at}");
            ensure!(
                self.is_right(*token),
                "token {number} is no {:?}",
                token.kind
            );
            at = token.end;
        }
        ensure!(at == self.text.len(), "the text ends at {at}");
        let names = self.tokens.iter().filter(|token| token.kind == Kind::Name);
        let found = names.count();
        let expected = PIECES * names_by_words(PIECE).context("the text has an open quote")?;
        ensure!(
            found == expected,
            "there are {found} names and not {expected}"
        );
        Ok(())
    }

    fn spoil(&mut self) -> Result<()> {
        let middle = self.tokens.len() / 2;
        self.tokens.remove(middle);
        Ok(())
    }
}

/// How many names there are in a text, found otherwise: what is no code is blanked out,
/// and what is left is split into words.
fn names_by_words(text: &str) -> Option<usize> {
    let mut code = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['"', '\'', '/']) {
        code.push_str(&rest[..at]);
        code.push(' ');
        rest = &rest[at..];
        let length = if rest.starts_with("/*") {
            rest.find("*/")? + 2
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with('/') {
            1
        } else {
            let quote = &rest[..1];
            let plain = rest[1..]
                .replace("\\\\", "..")
                .replace(&format!("\\{quote}"), "..");
            plain.find(quote)? + 2
        };
        rest = &rest[length..];
    }
    code.push_str(rest);
    let words = code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'));
    let is_name = |word: &&str| !word.is_empty() && !word.starts_with(|c: char| c.is_ascii_digit());
    let names = words.filter(is_name).flat_map(|word| word.split('.'));
    Some(names.filter(is_name).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_in_tokens() {
        let text = br#"int a_1 = 0x1f; /* no "quote" */ puts("a\"b"); // end"#;
        let (mut at, mut found) = (0, Vec::new());
        while at < text.len() {
            let token = token(text, at);
            at = token.end;
            if token.kind != Kind::Blank {
                let part = std::str::from_utf8(&text[token.start..token.end]).unwrap();
                found.push((token.kind, part));
            }
        }
        let expected = [
            (Kind::Name, "int"),
            (Kind::Name, "a_1"),
            (Kind::Sign, "="),
            (Kind::Number, "0x1f"),
            (Kind::Sign, ";"),
            (Kind::Comment, "/* no \"quote\" */"),
            (Kind::Name, "puts"),
            (Kind::Sign, "("),
            (Kind::Quoted, "\"a\\\"b\""),
            (Kind::Sign, ")"),
            (Kind::Sign, ";"),
            (Kind::Comment, "// end"),
        ];
        assert_eq!(found, expected);
        assert_eq!(names_by_words(std::str::from_utf8(text).unwrap()), Some(3));
    }

    #[test]
    fn what_has_no_end_ends_with_the_text() {
        for open in ["/* x", "\"x", "'\\", "// x"] {
            assert_eq!(token(open.as_bytes(), 0).end, open.len(), "{open}");
        }
    }

    #[test]
    fn a_token_of_another_kind_is_found() {
        let mut lexing = Lexing::new();
        lexing.operate().unwrap();
        let name = lexing.tokens.iter().position(|t| t.kind == Kind::Name);
        lexing.tokens[name.unwrap()].kind = Kind::Number;
        assert!(lexing.check().is_err());
    }
}
