//! Words that no name, comment or document may use: metaphors for things that have a standard name.

use std::fs;

use super::{documents, report, sources};

/// Each word, and the standard names that it stood for.
const FORBIDDEN: [(&str, &str); 83] = [
    ("afresh", "again, retry"),
    ("anew", "again"),
    ("astray", "wrong audience, misdirected"),
    ("bell", "notify, wake handle"),
    ("bells", "notify, wake handles"),
    ("bury", "dead-letter"),
    ("chapter", "chunk"),
    ("chapters", "chunks"),
    ("crew", "revision scaler"),
    ("crews", "revision scalers"),
    ("crowd", "inflight limiter, load"),
    ("crowds", "inflight limiters, load"),
    ("customs", "CRD registry"),
    ("desk", "dispatcher, resolver"),
    ("door", "listener, acceptor"),
    ("doorbell", "wake flag"),
    ("doorman", "acceptor"),
    ("doormen", "acceptors"),
    ("doors", "listeners, acceptors"),
    ("dressed", "with defaults"),
    ("errand", "delivery task"),
    ("errands", "delivery tasks"),
    ("estate", "handover state"),
    ("everybody", "name the subject"),
    ("fleet", "autoscaler"),
    ("frost", "freezer"),
    ("guest", "pending request, instance"),
    ("guests", "pending requests, instances"),
    ("hasten", "retry now"),
    ("hindrance", "not-ready reason"),
    ("house", "broker engine, server, fixture"),
    ("household", "namespace defaults"),
    ("hurried", "notified, urgent"),
    ("inflow", "read buffer"),
    ("junctor", "combinator"),
    ("junctors", "combinators"),
    ("leash", "child guard"),
    ("leashed", "child guard"),
    ("leavers", "disconnecting clients"),
    ("lest", "so that ... not"),
    ("lookalike", "variant"),
    ("lull", "idle"),
    ("manners", "traffic policy"),
    ("mended", "repaired"),
    ("outflow", "write buffer"),
    ("outward", "advertised address"),
    ("papers", "token verifier, credentials"),
    ("parcel", "core message"),
    ("porter", "authenticator"),
    ("pump", "worker, reader"),
    ("pumps", "workers, readers"),
    ("rehearsal", "dry run"),
    ("rehearse", "dry run"),
    ("reins", "control handle"),
    ("roster", "connection tracker"),
    ("ruffian", "hostile client"),
    ("seat", "prefork process, guard"),
    ("seats", "prefork pool"),
    ("shelf", "arena, cache, store"),
    ("shelves", "arenas, caches, stores"),
    ("somebody", "name the subject"),
    ("sorter", "fan-out matcher"),
    ("sorters", "fan-out matchers"),
    ("stormy", "severe"),
    ("stranger", "unauthorized sender"),
    ("strangers", "unauthorized senders"),
    ("stray", "orphan"),
    ("strays", "orphans"),
    ("sweeper", "reaper"),
    ("sweepers", "reapers"),
    ("tempers", "behaviors"),
    ("thereof", "of it"),
    ("turnstile", "handshake limiter"),
    ("unhurried", "relaxed"),
    ("untold", "unreported"),
    ("vigil", "busy poll"),
    ("weather", "fault profile"),
    ("whence", "from where"),
    ("wherein", "in which"),
    ("whoever", "name the subject"),
    ("windy", "moderate"),
    ("workshop", "work folder"),
    ("workshops", "work folders"),
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
