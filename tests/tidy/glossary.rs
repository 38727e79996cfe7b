//! Words that no name, comment or document may use: metaphors for things that have a standard name.

use std::fs;

use super::{documents, report, sources};

/// Each word, and the standard names that it stood for.
const FORBIDDEN: [(&str, &str); 39] = [
    ("bell", "notify, wake handle"),
    ("bells", "notify, wake handles"),
    ("crew", "revision scaler"),
    ("crews", "revision scalers"),
    ("customs", "CRD registry"),
    ("desk", "dispatcher, resolver"),
    ("door", "listener, acceptor"),
    ("doorbell", "wake flag"),
    ("doormen", "acceptors"),
    ("doors", "listeners, acceptors"),
    ("errand", "delivery task"),
    ("errands", "delivery tasks"),
    ("estate", "handover state"),
    ("fleet", "autoscaler"),
    ("guest", "pending request, instance"),
    ("guests", "pending requests, instances"),
    ("house", "broker engine, server, fixture"),
    ("household", "namespace defaults"),
    ("inflow", "read buffer"),
    ("leash", "child guard"),
    ("lull", "idle"),
    ("manners", "traffic policy"),
    ("outflow", "write buffer"),
    ("papers", "token verifier, credentials"),
    ("porter", "authenticator"),
    ("reins", "control handle"),
    ("roster", "connection tracker"),
    ("seat", "prefork process, guard"),
    ("seats", "prefork pool"),
    ("shelf", "arena, cache, store"),
    ("shelves", "arenas, caches, stores"),
    ("stranger", "unauthorized sender"),
    ("strangers", "unauthorized senders"),
    ("stray", "orphan"),
    ("strays", "orphans"),
    ("turnstile", "handshake limiter"),
    ("vigil", "busy poll"),
    ("weather", "fault profile"),
    ("whoever", "name the subject"),
];

/// The words of a text in lower case. An identifier's words are separate: `HostName` and `host_name` are two.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut last = ' ';
    for letter in text.chars() {
        let starts = !letter.is_ascii_alphabetic() || (letter.is_ascii_uppercase() && last.is_ascii_lowercase());
        if starts && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if letter.is_ascii_alphabetic() {
            word.push(letter.to_ascii_lowercase());
        }
        last = letter;
    }
    words.push(word);
    words
}

/// A line of code without what stands between quotes. Test data may use any word.
fn without_strings(line: &str) -> String {
    let mut code = String::with_capacity(line.len());
    let (mut quoted, mut escaped) = (false, false);
    for letter in line.chars() {
        match letter {
            '"' if !escaped => quoted = !quoted,
            _ if quoted => {}
            _ => code.push(letter),
        }
        escaped = letter == '\\' && !escaped;
    }
    code
}

fn check(path: &str, line_number: usize, line: &str, broken: &mut Vec<String>) {
    for word in words(line) {
        if let Ok(row) = FORBIDDEN.binary_search_by_key(&word.as_str(), |(forbidden, _)| forbidden) {
            broken.push(format!("{path}:{line_number}: \"{word}\" is not a standard name; use: {}", FORBIDDEN[row].1));
        }
    }
}

#[test]
fn names_and_comments_use_standard_words() {
    let mut broken = Vec::new();
    for (path, text) in sources() {
        if path == "tests/tidy/glossary.rs" {
            continue;
        }
        check(&path, 0, &path, &mut broken);
        for (at, line) in text.lines().enumerate() {
            check(&path, at + 1, &without_strings(line), &mut broken);
        }
    }
    report(&broken);
}

#[test]
fn documents_use_standard_words() {
    let mut broken = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(super::root().join(&path)).unwrap();
        for (at, line) in text.lines().enumerate() {
            check(&path, at + 1, line, &mut broken);
        }
    }
    report(&broken);
}

#[test]
fn glossary_is_sorted_and_finds_words_in_identifiers() {
    assert!(FORBIDDEN.is_sorted(), "the lookup is a binary search");
    let mut broken = Vec::new();
    check("a.rs", 1, "let house_of = DeadLetters::new(SEAT_MAX); // on a shelf", &mut broken);
    assert_eq!(broken.len(), 3, "{broken:#?}");
    assert_eq!(without_strings(r#"f("the \"house\"", house)"#), "f(, house)");
}
