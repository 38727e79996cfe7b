//! The AdapterTypes for a write of an object that runs an adapter: their schemas judge its configuration (TRN-45).

use types::adapter_schemas::AdapterTypeSpec;
use types::kind_registry::ResourceStrategy as _;
use types::sinks::adapter::AdapterSink;
use types::sources::adapter::AdapterSource;
use types::sources::adapter_type::AdapterType;

use super::{ApiRequest, prepare};

/// AdapterTypes that are read for a write, each unpacked and parsed. Where there are more, the adapter alone checks its
/// configuration, when it starts.
const TYPES_READ_MAX: usize = 100;

pub(super) fn types_for(call: &ApiRequest) -> Vec<AdapterTypeSpec> {
    let meta = call.target.entry.stored_meta();
    let is_adapter =
        [AdapterSource::META, AdapterSink::META].iter().any(|kind| (kind.group, kind.kind) == (meta.group, meta.kind));
    if !is_adapter || call.target.status {
        return Vec::new();
    }
    let resource = prepare::resource_of(&AdapterType::META);
    let memory = call.server.store.read();
    if memory.count(&resource, None) > TYPES_READ_MAX {
        return Vec::new();
    }
    let found = memory.list(&resource, None).items();
    drop(memory);
    let types = found.iter().filter_map(|one| serde_json::from_value::<AdapterType>(one.value()).ok());
    types.map(|known| known.spec).collect()
}
