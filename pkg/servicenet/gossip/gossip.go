// Package gossip is the gossip rail: a memberlist with encryption on, its members' roles and
// addresses as metadata, and a small rate-limited broadcast. It is evidence and transport, never
// the judge: any holder of the key can declare any member dead.
package gossip

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"
)

// Role of a member.
type Role string

// The roles.
const (
	RoleNode       Role = "node"
	RoleSupervisor Role = "supervisor"
)

// Meta is what a member says of itself; a hint, never proof.
type Meta struct {
	Role       Role   `json:"r"`
	ID         string `json:"i"`           // node or supervisor id
	Coord      string `json:"c,omitempty"` // "x,y,z" of a node
	ReportAddr string `json:"a,omitempty"` // "ip:port" of its direct rail
	Leader     bool   `json:"l,omitempty"` // a supervisor that leads
}

// EventKind says what happened to a member.
type EventKind uint8

// The kinds of events.
const (
	EventJoin   EventKind = iota + 1
	EventLeave            // it said goodbye
	EventUpdate           // its metadata changed
	EventFail             // memberlist holds it for dead
)

var eventNames = [...]string{"", "JOIN", "LEAVE", "UPDATE", "FAIL"}

func (k EventKind) String() string {
	if k == 0 || int(k) >= len(eventNames) {
		return fmt.Sprintf("EventKind(%d)", uint8(k))
	}
	return eventNames[k]
}

// Member is one member as memberlist sees it.
type Member struct {
	Name string
	Addr netip.AddrPort
	Meta Meta
}

// Event is a change of membership.
type Event struct {
	Kind   EventKind
	Member Member
}

// Timing sets memberlist's periods; a zero field takes the default.
type Timing struct {
	ProbeInterval, ProbeTimeout, GossipInterval, PushPullInterval time.Duration
}

// Config of a member.
type Config struct {
	Name        string   // unique among the members
	Bind        string   // "ip:port", TCP and UDP; port 0 takes a free one
	Join        []string // "ip:port" of some members; tried again until one answers
	Key         []byte   // 32 bytes, AES-256
	Meta        Meta
	Logger      *slog.Logger
	OnMember    func(Event)  // may be nil; called from one goroutine, in order
	OnBroadcast func([]byte) // may be nil; called from one goroutine; owns the slice
	Timing      Timing
}

// Net is one member.
type Net struct{}

// New starts a member and begins to join.
func New(cfg Config) (*Net, error) { panic("skeleton") }

// Addr returns the address in use.
func (n *Net) Addr() netip.AddrPort { panic("skeleton") }

// Members returns the live members, this one included, by name.
func (n *Net) Members() []Member { panic("skeleton") }

// Broadcast queues b for all members (not this one). It never blocks.
func (n *Net) Broadcast(b []byte) error { panic("skeleton") }

// UpdateMeta changes this member's metadata and tells the others.
func (n *Net) UpdateMeta(m Meta) error { panic("skeleton") }

// Block drops all of this member's traffic both ways, for fault injection.
func (n *Net) Block(on bool) { panic("skeleton") }

// Stats counts broadcasts.
type Stats struct {
	Broadcast, RateLimited, Received, ReceiveDropped, EventsDropped uint64
}

// Stats returns the counters.
func (n *Net) Stats() Stats { panic("skeleton") }

// Leave says goodbye to the others, waiting for at most the time given. Close must follow.
func (n *Net) Leave(timeout time.Duration) error { panic("skeleton") }

// Close stops the member; it does not say goodbye.
func (n *Net) Close() error { panic("skeleton") }
