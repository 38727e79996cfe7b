//! What SinkBindings say to an object with a template when it is written, as upstream's webhook does: its first Revision
//! would not know where to send, and be replaced at once.

use crate::kind::{KindMeta, Resource as _};
use crate::kinds::serving::configuration::Configuration;
use crate::kinds::serving::service::Service;
use crate::kinds::sources::binding::SinkBinding;

use super::{Call, object};

/// SinkBindings of a namespace that are read for a write, each unpacked and parsed. Where there are more, the controller
/// tells subjects alone, a Revision later.
const BINDINGS_READ_MAX: usize = 100;

/// Those that the write of this call has to do with.
pub(super) fn of(call: &Call) -> Vec<SinkBinding> {
    let Some(namespace) = call.target.namespace.as_deref().filter(|_| is_concerned(call)) else {
        return Vec::new();
    };
    let resource = object::resource_of(&SinkBinding::META);
    let found = {
        let memory = call.server.store.read();
        if memory.count(&resource, Some(namespace)) > BINDINGS_READ_MAX {
            return Vec::new();
        }
        memory.list(&resource, Some(namespace)).items()
    };
    found.iter().filter_map(|one| serde_json::from_value(one.value()).ok()).collect()
}

/// Our controllers know what they write.
fn is_concerned(call: &Call) -> bool {
    let same = |meta: &KindMeta| {
        let this = call.target.entry.stored_meta();
        (this.group, this.kind) == (meta.group, meta.kind)
    };
    let has_template = same(&Service::META) || same(&Configuration::META);
    has_template && !call.target.status && !call.server.requester.is_controller()
}
