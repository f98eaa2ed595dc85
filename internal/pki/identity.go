// Package pki handles identity: names in certificates, the cluster's certificate authority, signatures over messages,
// TLS configurations, the list of revoked certificates and the tokens of browser sessions.
//
// Halves and replicas sign messages with Ed25519. The authority and people may have ECDSA P-256 instead, and a replica
// has a second key of that type, for TLS clients that refuse Ed25519. An identity is the SAN URI
// lofamo://CLUSTER/ROLE/NAME, and nothing else in a certificate gives a right. A node has two certificates, named
// NODE/host and NODE/dnp. Callers decide on the rights of a role.
package pki

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Role is the role of a certificate's holder. The zero value is no role.
type Role string

// The roles.
const (
	RoleViewer     Role = "viewer"     // reads
	RoleOperator   Role = "operator"   // reads and acts
	RoleApprover   Role = "approver"   // approves what operators and policies ask for
	RoleNode       Role = "node"       // a half of a node
	RoleSupervisor Role = "supervisor" // a replica
	RoleExecutor   Role = "executor"   // an executor process: supervisors call it, and it makes no calls
)

// people lists the roles of people.
var people = []Role{RoleViewer, RoleOperator, RoleApprover}

// Roles lists the roles.
func Roles() []Role {
	return []Role{RoleViewer, RoleOperator, RoleApprover, RoleNode, RoleSupervisor, RoleExecutor}
}

// Valid reports whether r is one of the roles.
func (r Role) Valid() bool { return slices.Contains(Roles(), r) }

// String returns the role's name.
func (r Role) String() string { return string(r) }

// Identity is the identity in a certificate.
type Identity struct {
	Cluster string
	Role    Role
	Name    string // a supervisor's id, a person's name, or NODE/host, NODE/dnp
}

const scheme = "lofamo"

func isCluster(s string) bool { return fault.IsNameWith(s, false, "-.") }

// String returns the identity's URI.
func (id Identity) String() string {
	return scheme + "://" + id.Cluster + "/" + string(id.Role) + "/" + id.Name
}

// Validate rejects identities that could be confused with another one.
func (id Identity) Validate() error {
	if !isCluster(id.Cluster) {
		return fmt.Errorf("identity: cluster %q: want 1 to 63 of a-z, 0-9, '-' and '.'", id.Cluster)
	}
	if !id.Role.Valid() {
		return fmt.Errorf("identity: role %q: want one of %s", id.Role, fault.List(Roles()))
	}
	name := id.Name
	if id.Role == RoleNode {
		node, half, _ := strings.Cut(id.Name, "/")
		if _, err := fault.ParseHalf(half); err != nil {
			return fmt.Errorf("identity: name %q of a node: want NODE/host or NODE/dnp", id.Name)
		}
		name = node
	}
	if !fault.IsNameWith(name, true, "._@-") {
		return fmt.Errorf("identity: name %q: want 1 to 63 letters, digits, '-', '_', '.' and '@'", id.Name)
	}
	return nil
}

// Origin returns the half that the identity is, and false for any but a node's.
func (id Identity) Origin() (fault.Origin, bool) {
	if id.Role != RoleNode {
		return fault.Origin{}, false
	}
	node, name, _ := strings.Cut(id.Name, "/")
	half, err := fault.ParseHalf(name)
	if err != nil || node == "" {
		return fault.Origin{}, false
	}
	return fault.Origin{Node: fault.NodeID(node), Half: half}, true
}

// NodeIdentity is the identity of one half of a node.
func NodeIdentity(cluster string, node fault.NodeID, half fault.Half) Identity {
	return Identity{Cluster: cluster, Role: RoleNode, Name: string(node) + "/" + half.String()}
}

// SupervisorIdentity is the identity of a replica.
func SupervisorIdentity(cluster, id string) Identity {
	return Identity{Cluster: cluster, Role: RoleSupervisor, Name: id}
}

// ParseIdentity reads an identity's URI.
func ParseIdentity(uri string) (Identity, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return Identity{}, fmt.Errorf("identity %q: %w", uri, err)
	}
	role, name, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	id := Identity{Cluster: u.Host, Role: Role(role), Name: name}
	if err := id.Validate(); err != nil {
		return Identity{}, err
	}
	if id.String() != uri { // no query, no escapes, no second spelling
		return Identity{}, fmt.Errorf("identity %q: want lofamo://CLUSTER/ROLE/NAME", uri)
	}
	return id, nil
}

// IdentityOf reads the identity from a certificate. It does not check the certificate.
func IdentityOf(cert *x509.Certificate) (Identity, error) {
	if cert == nil {
		return Identity{}, fmt.Errorf("identity: no certificate")
	}
	if len(cert.URIs) != 1 || cert.URIs[0].Scheme != scheme {
		return Identity{}, fmt.Errorf("identity of certificate %q: %d SAN URIs: want exactly one, lofamo://CLUSTER/ROLE/NAME",
			cert.Subject.CommonName, len(cert.URIs))
	}
	return ParseIdentity(cert.URIs[0].String())
}
