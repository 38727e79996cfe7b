//! Alone in its process, because it looks at the memory of all of it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

const MIB: usize = 1024 * 1024;

/// What the process holds that is no file's.
fn held() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[cfg(target_env = "gnu")]
#[test]
fn what_was_freed_between_things_that_stay_is_given_back() {
    let mut stays = Vec::new();
    let large: Vec<Vec<u8>> = (0..1024)
        .map(|_| {
            stays.push(Box::new([1_u8; 32]));
            vec![1; 64 * 1024] // below what is mapped by itself
        })
        .collect();
    drop(large);
    let before = held();
    assert!(before > 32 * MIB, "nothing is kept, so there is nothing to let go: {before}");
    sluicegate_ring::heap::let_go();
    assert!(held() + 32 * MIB < before, "{before} bytes before, {} after", held());
    assert!(stays.iter().all(|one| one[31] == 1));
}
