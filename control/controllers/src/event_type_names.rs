//! The names of automatically created EventTypes, and the feature that creates them.

/// The flag of ConfigMap `config-features` that has EventTypes made of what comes in.
pub(crate) const AUTO_CREATE: &str = "eventtype-auto-create";
/// Characters kept of the stream's name, so that the EventType's with its hash is a name.
const NAME_CHARS_MAX: usize = 200;

/// The name of an EventType, distinct for different parts.
pub(crate) fn event_type_name<'p>(prefix: &str, parts: impl Iterator<Item = &'p str>) -> String {
    let prefix: String = prefix.chars().take(NAME_CHARS_MAX).collect();
    format!("et-{prefix}-{:032x}", hash(parts))
}

/// FNV-1a: stable, so that a restart finds the objects that it created.
fn hash<'p>(parts: impl Iterator<Item = &'p str>) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = parts.flat_map(|part| part.bytes().chain([0]));
    bytes.fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}
