//! In a process of its own, because it measures the memory of the whole process.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use sluicegate_ring::allocator::{ArenaAllocator, long_lived, release_pages};

#[global_allocator]
static HEAP: ArenaAllocator = ArenaAllocator;

const MIB: usize = 1024 * 1024;

/// Anonymous memory of the process.
fn held() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[test]
fn long_lived_data_keeps_no_temporary_page() {
    let before = held();
    let (mut stay, mut go) = (Vec::new(), Vec::new());
    for n in 0..16_000_usize {
        go.extend((0..20).map(|_| vec![1_u8; 200]));
        let _stays = long_lived();
        let mut words = vec![n; 4];
        words.extend([n; 9]); // it is reallocated, and stays long-lived
        stay.push((format!("name-{n}"), words, vec![0_u64; 30]));
    }
    assert!(held() > before + 64 * MIB);
    drop(go);
    release_pages([]);
    let after = held() - before;
    assert!(after < 12 * MIB, "{after} bytes are held of 6 MB that stay");

    // Grown, shrunk and dropped by another thread without a long-lived scope.
    let moved = std::thread::spawn(move || {
        for (n, (name, words, zeros)) in stay.iter_mut().enumerate() {
            name.push_str(" and more of it, so that it is in another place");
            words.truncate(2);
            words.shrink_to_fit();
            assert!(name.starts_with(&format!("name-{n} and")) && *words == [n, n]);
            assert!(zeros.iter().all(|zero| *zero == 0));
        }
        stay.len()
    });
    assert_eq!(moved.join().unwrap(), 16_000);
    release_pages([]);
    assert!(held() < before + 4 * MIB, "{} bytes before, {} when all is gone", before, held());
}
