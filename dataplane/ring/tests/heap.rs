//! In a process of its own, because it measures the memory of the whole process.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(target_env = "gnu")]
use sluicegate_ring::allocator::{CachedChunks, cached, release_pages};

const MIB: usize = 1024 * 1024;

/// Anonymous memory of the process.
fn held() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// As many of each small size as the C library caches, all far from each other.
#[cfg(target_env = "gnu")]
fn thread_cache_is_released_with_thread() {
    let far: Vec<_> = (24..=1032)
        .step_by(16)
        .flat_map(|size| [size; 7])
        .map(|size| (vec![1_u8; 16 * 1024], vec![1_u8; size]))
        .collect();
    let (large, small): (Vec<_>, Vec<_>) = far.into_iter().unzip();
    drop((large, small));
    let elsewhere = |of_this: Option<CachedChunks>| std::thread::spawn(move || release_pages(of_this)).join().unwrap();
    elsewhere(None);
    let before = held();
    elsewhere(Some(cached()));
    assert!(held() + MIB < before, "{before} bytes before, {} after", held());
}

#[cfg(target_env = "gnu")]
#[test]
fn freed_pages_between_live_data_are_released() {
    thread_cache_is_released_with_thread();
    let mut stays = Vec::new();
    let large: Vec<Vec<u8>> = (0..1024)
        .map(|_| {
            stays.push(Box::new([1_u8; 32]));
            vec![1; 64 * 1024] // below the size that is mapped individually
        })
        .collect();
    drop(large);
    let before = held();
    assert!(before > 32 * MIB, "nothing is retained, so there is nothing to release: {before}");
    release_pages([]);
    assert!(held() + 32 * MIB < before, "{before} bytes before, {} after", held());
    assert!(stays.iter().all(|one| one[31] == 1));
}
