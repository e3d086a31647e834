//! What a user is told who asks for what cannot be.

use std::process::Output;

/// Asserts a failure with one line on standard error, which holds these words.
pub fn assert_refused(output: &Output, status: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("quire: "), "{text}");
    for word in words {
        assert!(text.contains(word), "{text} lacks {word}");
    }
}
