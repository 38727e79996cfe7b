//! The parts of the system that an appliance takes over (`--roles`). In a cluster other controllers may have the rest, so that
//! it can be adopted one part at a time.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use types::settings::SERVING;

/// Where the Leases are: in the namespace that every installation of Knative has.
pub const LEASE_NAMESPACE: &str = SERVING;
/// The Lease of appliances that are not told their roles, and the start of the names of the others.
pub const LEASE: &str = "sluicegate";

/// The controllers of some kinds. An appliance watches, restores and writes the kinds of its roles alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Services, Configurations, Revisions, Routes and DomainMappings, and with an API of its own workloads.
    Serving,
    /// Knative's Ingresses and Certificates of the appliance's own classes.
    Ingress,
    /// Brokers of the appliance's own class, their Triggers, EventTypes and EventPolicies.
    Broker,
    /// Channels, InMemoryChannels, Subscriptions, Sequences, Parallels and EventPolicies.
    Channel,
    /// Sources and sinks.
    Sources,
    /// Gateways of the appliance's own classes, and their routes.
    GatewayApi,
}

impl Role {
    /// In the order in which their Leases are acquired.
    pub const ALL: [Self; 6] =
        [Self::Serving, Self::Ingress, Self::Broker, Self::Channel, Self::Sources, Self::GatewayApi];

    /// As `--roles` spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Ingress => "ingress",
            Self::Broker => "broker",
            Self::Channel => "channel",
            Self::Sources => "sources",
            Self::GatewayApi => "gateway-api",
        }
    }

    /// Whether it can be taken over in a cluster: sources run in an appliance with an API of its own.
    #[must_use]
    pub fn can_follow(self) -> bool {
        self != Self::Sources
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|role| role.name() == text).ok_or_else(|| {
            let all: Vec<&str> = Self::ALL.iter().map(|role| role.name()).collect();
            format!("{text:?} is not a role; the roles are {}", all.join(", "))
        })
    }
}

/// The roles of one appliance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleSet {
    roles: BTreeSet<Role>,
    /// One Lease for all of them, instead of one for each.
    shares_lease: bool,
}

impl RoleSet {
    /// Every role, of an appliance with an API of its own.
    #[must_use]
    pub fn all() -> Self {
        Self { roles: Role::ALL.into(), shares_lease: true }
    }

    /// Of an appliance that follows a cluster and is not told its roles.
    #[must_use]
    pub fn of_followers() -> Self {
        Self { roles: [Role::Serving, Role::Ingress, Role::Broker, Role::Channel].into(), shares_lease: true }
    }

    /// Chosen ones.
    #[must_use]
    pub fn chosen(roles: impl IntoIterator<Item = Role>) -> Self {
        Self { roles: roles.into_iter().collect(), shares_lease: false }
    }

    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    /// Whether they were named, so that others may have the rest.
    #[must_use]
    pub fn is_chosen(&self) -> bool {
        !self.shares_lease
    }

    pub fn iter(&self) -> impl Iterator<Item = Role> {
        self.roles.iter().copied()
    }

    /// The Leases that an appliance needs to write, in the order in which it acquires them.
    pub(crate) fn leases(&self) -> Vec<String> {
        if self.shares_lease { vec![LEASE.to_owned()] } else { self.iter().map(lease_of).collect() }
    }

    /// The Leases that an appliance with an API of its own holds there, which are those of followers with any of its roles, and
    /// those that it leaves to others.
    pub(crate) fn leases_of_own_api(&self) -> (Vec<String>, Vec<String>) {
        let (held, left): (Vec<Role>, Vec<Role>) = Role::ALL.iter().partition(|role| self.has(**role));
        let held = std::iter::once(LEASE.to_owned()).chain(held.into_iter().map(lease_of)).collect();
        (held, left.into_iter().map(lease_of).collect())
    }
}

fn lease_of(role: Role) -> String {
    format!("{LEASE}-{role}")
}

impl fmt::Display for RoleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(Role::name).collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_is_read_by_its_name() {
        for role in Role::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
        }
        let why = "brokers".parse::<Role>().unwrap_err();
        assert!(why.contains("\"brokers\"") && why.contains("broker, channel"), "{why}");
    }

    #[test]
    fn chosen_roles_have_a_lease_each() {
        assert_eq!(RoleSet::of_followers().leases(), ["sluicegate"]);
        let chosen = RoleSet::chosen([Role::Channel, Role::Broker, Role::Channel]);
        assert_eq!(chosen.leases(), ["sluicegate-broker", "sluicegate-channel"]);
        assert_eq!(chosen.to_string(), "broker, channel");
        assert!(chosen.has(Role::Broker) && !chosen.has(Role::Ingress));
        let (held, left) = RoleSet::all().leases_of_own_api();
        assert!(chosen.leases().iter().all(|lease| held.contains(lease)) && held.contains(&LEASE.to_owned()));
        assert!(left.is_empty());
        let (held, left) = chosen.leases_of_own_api();
        assert_eq!(held, ["sluicegate", "sluicegate-broker", "sluicegate-channel"]);
        assert_eq!(left.len(), Role::ALL.len() - 2);
    }
}
