//! Sets listeners that are opened at run time: their sockets, hostnames and certificates.

use std::sync::Arc;

use contract::listener_sockets::{ListenerId, ListenerSpec};
use contract::tls::CertificateStore;

use super::Publisher;
use super::listener_state::ListenerState;
use super::routing_model::RoutingModel;

impl Publisher {
    /// The id of a listener: the same as long as the process runs.
    pub fn listener_id(&self, spec: ListenerSpec) -> ListenerId {
        id_of(&mut self.lock(), spec)
    }

    /// Replaces all of a listener but its routes.
    pub fn set_listener(&self, spec: ListenerSpec, state: ListenerState) {
        self.update(|model| {
            let id = id_of(model, spec);
            if *model.listeners.entry(id).or_default() == state {
                return false;
            }
            let mut certificates = CertificateStore::default();
            state.certificates.iter().for_each(|(host, identity)| certificates.insert(host, identity.clone()));
            let listener = model.table.listener_mut(id, spec);
            listener.set_hostnames(&state.hostnames);
            listener.set_relay_modes(&state.relay_modes);
            listener.certificates = Arc::new(certificates);
            listener.sockets.clone_from(&state.sockets);
            model.table.remove_unused_listener(id);
            model.listeners.insert(id, state);
            true
        });
    }
}

fn id_of(model: &mut RoutingModel, spec: ListenerSpec) -> ListenerId {
    let earlier = u32::try_from(model.listener_ids.len()).unwrap_or(u32::MAX);
    *model.listener_ids.entry(spec).or_insert_with(|| ListenerId::after(earlier))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Mutex;

    use contract::listener_sockets::{ListenerProtocol, ListenerSocket, ListenerSockets};
    use contract::table::{RequestMatch, RoutingTable};

    use super::*;
    use crate::publish::{HostRule, ListenerHostname, PathRule, WeightedBackend};

    /// A publisher that keeps its last table.
    fn publisher() -> (Publisher, Arc<Mutex<RoutingTable>>) {
        let last = Arc::<Mutex<RoutingTable>>::default();
        let kept = Arc::clone(&last);
        let publisher = Publisher::new(Arc::new(move |table| *kept.lock().unwrap() = table));
        publisher.start();
        (publisher, last)
    }

    fn rule(listener: Option<ListenerHostname>, path: &str) -> HostRule {
        let splits = vec![WeightedBackend::new(path, 1)];
        let paths = vec![PathRule { matches: RequestMatch::prefix(path), splits, ..PathRule::default() }];
        HostRule { hosts: vec!["a.test".into()], paths, listener: listener.map(Arc::new), ..HostRule::default() }
    }

    /// Routes of a listener are not among those of the appliance, and a host can belong to both.
    #[tokio::test]
    async fn routes_of_a_listener_are_its_own() {
        let (publisher, last) = publisher();
        let spec = ListenerSpec { address: "127.0.0.1:9000".parse().unwrap(), protocol: ListenerProtocol::Http };
        let id = publisher.listener_id(spec);
        assert_eq!(publisher.listener_id(spec), id);
        let at = ListenerHostname { id, spec, hostname: "*.test".to_owned() };
        publisher.set_route("one", vec![rule(None, "/appliance")]).unwrap();
        publisher.set_route("two", vec![rule(Some(at), "/listener")]).unwrap();
        let socket = ListenerSocket::Stream(TcpListener::bind("127.0.0.1:0").unwrap());
        let sockets = ListenerSockets::new(id, spec, vec![socket]);
        let hostnames = ["*.test".to_owned()].into();
        publisher.set_listener(spec, ListenerState { sockets: Some(sockets), hostnames, ..ListenerState::default() });
        publisher.flush().await;
        {
            let table = last.lock().unwrap();
            let listener = table.listener(id).unwrap();
            let backends = |route: &contract::table::Route| -> Vec<_> {
                route.all_splits().map(|split| split.backend.key.to_string()).collect()
            };
            assert_eq!(backends(listener.route("a.test").unwrap()), ["/listener"]);
            assert_eq!(backends(table.route("a.test").unwrap()), ["/appliance"]);
            assert!(listener.sockets.is_some());
        }
        publisher.set_listener(spec, ListenerState::default());
        publisher.flush().await;
        assert!(last.lock().unwrap().listener(id).unwrap().route("a.test").is_none(), "it is closed");
        publisher.remove_route("two");
        publisher.flush().await;
        assert!(last.lock().unwrap().listeners.is_empty() && last.lock().unwrap().route("a.test").is_some());
    }
}
