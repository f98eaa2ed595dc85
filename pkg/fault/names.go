package fault

import (
	"fmt"
	"strings"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// names implements an enum's String and Parse; index 0 is the invalid zero value.
type names []string

func (n names) str(kind string, v uint8) string {
	if v == 0 || int(v) >= len(n) {
		return fmt.Sprintf("%s(%d)", kind, v)
	}
	return n[v]
}

func (n names) parse(kind, s string) (uint8, error) {
	for i := 1; i < len(n); i++ {
		if n[i] == s {
			return uint8(i), nil
		}
	}
	return 0, fmt.Errorf("%s %q: want one of %s", kind, s, strings.Join(n[1:], ", "))
}

var (
	halfNames  = names{"", "host", "dnp"}
	stateNames = names{"", "UNKNOWN", "NORMAL", "SICK", "FAILED"}
	causeNames = names{"", "NONE", "SENSOR", "PERIPHERAL", "MEMORY", "LINK", "SERVICE_NETWORK", "DNP", "HOST", "NODE", "BUS"}
	kindNames  = names{"", "SELF", "WATCHDOG", "DESCRIPTOR", "SILENCE", "HANDSHAKE", "ERROR_RATIO", "GOSSIP", "CHALLENGE", "VOTES", "DIGEST",
		"ABSENT"}
	pathNames = names{"", "DIRECT", "GOSSIP", "TORUS"}

	platformNames = names{"", "shared-kernel", "dpu"}
	stopNames     = names{"", "stop", "shutdown", "reboot", "over", "leave"}
)

var componentNames = func() names {
	n := names{"", "node", "host", "dnp", "dnp-core", "service-network", "memory", "peripheral/0", "peripheral/1",
		"temperature", "power", "voltage"}
	for _, d := range grid.Directions() {
		n = append(n, "link/"+d.String())
	}
	return append(n, "bus")
}()

func (h Half) String() string      { return halfNames.str("Half", uint8(h)) }
func (s State) String() string     { return stateNames.str("State", uint8(s)) }
func (c Cause) String() string     { return causeNames.str("Cause", uint8(c)) }
func (k Kind) String() string      { return kindNames.str("Kind", uint8(k)) }
func (p Path) String() string      { return pathNames.str("Path", uint8(p)) }
func (c Component) String() string { return componentNames.str("Component", uint8(c)) }

// String returns the name used in the agent's configuration, and "" if the platform was not stated.
func (p Platform) String() string {
	if p == 0 {
		return ""
	}
	return platformNames.str("Platform", uint8(p))
}

// Valid reports whether p is one of the platforms.
func (p Platform) Valid() bool { return p == PlatformSharedKernel || p == PlatformDPU }

// Valid reports whether h is one of the halves.
func (h Half) Valid() bool { return h >= HalfHost && h <= HalfDNP }

// Valid reports whether s is one of the states.
func (s State) Valid() bool { return s >= Unknown && s <= Failed }

// Valid reports whether k is one of the kinds.
func (k Kind) Valid() bool { return k >= KindSelf && k <= KindAbsent }

// OfSupervisors reports whether the supervisors make this evidence themselves. An observer's name does not tell, because a node may be
// called supervisor.
func (k Kind) OfSupervisors() bool { return k == KindChallenge || k == KindVotes || k == KindDigest }

// Valid reports whether p is one of the rails.
func (p Path) Valid() bool { return p >= PathDirect && p <= PathTorus }

// ParseHalf parses a half's name as String prints it.
func ParseHalf(s string) (Half, error) {
	v, err := halfNames.parse("half", s)
	return Half(v), err
}

// ParseState parses a state's name as String prints it.
func ParseState(s string) (State, error) {
	v, err := stateNames.parse("state", s)
	return State(v), err
}

// ParseCause parses a cause's name as String prints it.
func ParseCause(s string) (Cause, error) {
	v, err := causeNames.parse("cause", s)
	return Cause(v), err
}

// ParseKind parses an evidence kind's name as String prints it.
func ParseKind(s string) (Kind, error) {
	v, err := kindNames.parse("evidence kind", s)
	return Kind(v), err
}

// ParsePath parses a rail's name as String prints it.
func ParsePath(s string) (Path, error) {
	v, err := pathNames.parse("path", s)
	return Path(v), err
}

// ParseComponent parses a component's name as String prints it.
func ParseComponent(s string) (Component, error) {
	v, err := componentNames.parse("component", s)
	return Component(v), err
}
