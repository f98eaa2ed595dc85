package gossip

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/hashicorp/memberlist"

	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Role of a member.
type Role string

// The roles.
const (
	RoleNode       Role = "node"
	RoleSupervisor Role = "supervisor"
)

// Meta is a member's description of itself; a hint, never proof.
type Meta struct {
	Role       Role   `json:"r"`
	ID         string `json:"i"`           // node or supervisor id
	Coord      string `json:"c,omitempty"` // "x,y,z" of a node
	ReportAddr string `json:"a,omitempty"` // "ip:port" of its direct rail
	Leader     bool   `json:"l,omitempty"` // a supervisor that leads
}

// Validate names every bad field at once. It is applied to others' metadata as well.
func (m Meta) Validate() error {
	var errs []error
	if m.Role != RoleNode && m.Role != RoleSupervisor {
		errs = append(errs, fmt.Errorf("meta.role: given %.80q: want node or supervisor", m.Role))
	}
	if !servicenet.ValidID(m.ID) {
		errs = append(errs, fmt.Errorf("meta.id: given %.80q: want 1 to %d bytes of [A-Za-z0-9._-]", m.ID, servicenet.MaxNodeID))
	}
	if m.Coord != "" {
		if _, err := grid.ParseCoord(m.Coord); err != nil {
			errs = append(errs, fmt.Errorf("meta.coord: %w", err))
		}
	}
	if m.ReportAddr != "" {
		if _, err := netip.ParseAddrPort(m.ReportAddr); err != nil {
			errs = append(errs, fmt.Errorf("meta.report_addr: given %.80q: want ip:port", m.ReportAddr))
		}
	}
	return errors.Join(errs...)
}

// wireMeta is the encoded form. memberlist does not report whether a departed member had said goodbye, so a leaving
// one says it in its metadata first.
type wireMeta struct {
	Meta
	Leaving bool `json:"b,omitempty"`
}

func (m wireMeta) encode() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode metadata: %w", err)
	}
	if len(b) > maxMeta {
		return nil, fmt.Errorf("encode metadata: given %d bytes: want at most %d", len(b), maxMeta)
	}
	return b, nil
}

// decodeMeta reads another member's metadata. Unknown fields are a later version's.
func decodeMeta(b []byte) (wireMeta, error) {
	if len(b) > maxMeta {
		return wireMeta{}, fmt.Errorf("decode metadata: given %d bytes: want at most %d", len(b), maxMeta)
	}
	var m wireMeta
	if err := json.Unmarshal(b, &m); err != nil {
		return wireMeta{}, fmt.Errorf("decode metadata: %w", err)
	}
	if err := m.Validate(); err != nil {
		return wireMeta{}, fmt.Errorf("decode metadata: %w", err)
	}
	return m, nil
}

// memberOf reads a node while memberlist holds its lock on it. Metadata that cannot be read is zero.
func memberOf(n *memberlist.Node) (m Member, leaving bool) {
	m = Member{Name: n.Name}
	if ip, ok := netip.AddrFromSlice(n.Addr); ok {
		m.Addr = netip.AddrPortFrom(ip.Unmap(), n.Port)
	}
	w, err := decodeMeta(n.Meta)
	if err != nil {
		return m, false
	}
	m.Meta = w.Meta
	return m, w.Leaving
}
