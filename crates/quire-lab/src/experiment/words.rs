//! Splits the text of a command into words, where no shell is needed for that.
//!
//! A shell takes a millisecond, which is much for a command that takes as long. So
//! programs with plain words are started without one.

/// What a shell would do something about, outside of quotes.
const SPECIAL: &str = "|&;<>()$`\\*?[]{}~#!\n";
/// The same between double quotes.
const SPECIAL_IN_QUOTES: &str = "$`\\!";

/// The words of a text; `None` where it takes a shell to know them, or where there are
/// none.
#[must_use]
pub fn split(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = text.trim().chars();
    while let Some(letter) = rest.next() {
        match letter {
            ' ' | '\t' => words.extend(word.take()),
            '\'' | '"' => quoted(letter, &mut rest, word.get_or_insert_default())?,
            _ if SPECIAL.contains(letter) => return None,
            // An assignment for the command.
            '=' if words.is_empty() => return None,
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    (!words.is_empty()).then_some(words)
}

/// Adds what is between quotes, of which the first was read.
fn quoted(quote: char, rest: &mut impl Iterator<Item = char>, word: &mut String) -> Option<()> {
    loop {
        match rest.next()? {
            letter if letter == quote => return Some(()),
            letter if quote == '"' && SPECIAL_IN_QUOTES.contains(letter) => return None,
            letter => word.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_words_need_no_shell() {
        let words = |text| split(text).unwrap();
        assert_eq!(words("sleep 0.1"), ["sleep", "0.1"]);
        assert_eq!(
            words(" grep  -c 'a b' \"c'd\" e=f''"),
            ["grep", "-c", "a b", "c'd", "e=f"]
        );
        assert_eq!(words("x ''"), ["x", ""]);
        for shell in [
            "",
            "a | b",
            "a > b",
            "echo $X",
            "X=1 a",
            "a *",
            "a 'b",
            "echo \"$X\"",
            "~/a",
        ] {
            assert_eq!(split(shell), None, "{shell}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// A shell finds the same words.
        #[test]
        fn words_are_those_of_a_shell(text in "[ab=,.'\" \\$;*-]{0,12}") {
            if let Some(words) = split(&text) {
                let script = format!("for w in {text}; do printf '%s\\n' \"$w\"; done");
                let done = Command::new("sh").args(["-c", &script]).output().unwrap();
                let found = String::from_utf8(done.stdout).unwrap();
                let ours: String = words.iter().map(|word| format!("{word}\n")).collect();
                prop_assert_eq!(found, ours);
            }
        }
    }
}
