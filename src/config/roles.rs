//! `--roles`: the parts of the system that an appliance takes over.

use std::str::FromStr;

use control::controllers::roles::{Role, RoleSet};
use serde::Deserialize;

/// Names separated by commas, or `all`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RoleNames")]
pub(crate) struct RolesRule(Vec<Role>);

/// A string or a list, in the config file.
#[derive(Deserialize)]
#[serde(untagged)]
enum RoleNames {
    Text(String),
    List(Vec<String>),
}

impl TryFrom<RoleNames> for RolesRule {
    type Error = String;

    fn try_from(names: RoleNames) -> Result<Self, String> {
        match names {
            RoleNames::Text(text) => text.parse(),
            RoleNames::List(list) => list.join(",").parse(),
        }
    }
}

impl FromStr for RolesRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(Role::ALL.into()));
        }
        text.split(',').map(|name| name.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

/// Every part was meant before roles could be chosen, so this goes on for one release.
const FOLLOWS_WITHOUT_ROLES: &str = "--kubeconfig without --roles takes over serving, ingress, broker and channel; name the roles, \
     because a later release takes over nothing without it";

/// The roles of an appliance, which has an API of its own or follows a cluster.
pub(super) fn role_set(given: Option<RolesRule>, follows: bool, warnings: &mut Vec<String>) -> Result<RoleSet, String> {
    let Some(RolesRule(roles)) = given else {
        if !follows {
            return Ok(RoleSet::all());
        }
        warnings.push(FOLLOWS_WITHOUT_ROLES.to_owned());
        return Ok(RoleSet::of_followers());
    };
    if follows && roles == Role::ALL {
        return Ok(RoleSet::chosen(roles.into_iter().filter(|role| role.can_follow())));
    }
    match roles.iter().find(|role| follows && !role.can_follow()) {
        Some(role) => {
            Err(format!("roles: {role}: not with --kubeconfig; an appliance with an API of its own has this role"))
        }
        None => Ok(RoleSet::chosen(roles)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_from_text_or_list() {
        let rule = |text: &str| text.parse::<RolesRule>();
        assert_eq!(rule("ingress, broker"), Ok(RolesRule(vec![Role::Ingress, Role::Broker])));
        let list: RolesRule = serde_json::from_str(r#"["ingress", "broker"]"#).unwrap();
        assert_eq!(Ok(list), rule("ingress,broker"));
        for bad in ["", "ingress,", "activators", "All"] {
            assert!(rule(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn follower_has_no_sources() {
        let mut warnings = Vec::new();
        let mut set = |text: &str, follows| role_set(Some(text.parse().unwrap()), follows, &mut warnings);
        assert!(set("all", true).is_ok_and(|all| all.has(Role::GatewayApi) && !all.has(Role::Sources)));
        assert!(set("ingress,sources", true).unwrap_err().contains("sources: not with --kubeconfig"));
        assert!(set("ingress,sources", false).unwrap().has(Role::Sources));
        assert_eq!(role_set(None, false, &mut warnings), Ok(RoleSet::all()));
        assert!(warnings.is_empty());
        assert!(!role_set(None, true, &mut warnings).unwrap().has(Role::GatewayApi));
        assert!(warnings[0].contains("name the roles"));
    }
}
