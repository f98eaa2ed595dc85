package topology

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// MaxServices is the maximum number of service interfaces of a node.
const MaxServices = 8

// maxNamed bounds the bad fields that an error lists: a file with a mistake on every line must not make a message
// of megabytes.
const maxNamed = 100

// FieldError is one bad field and its problem.
type FieldError struct{ Field, Problem string }

// InvalidError names every bad field of a topology.
type InvalidError struct{ Fields []FieldError }

func (e *InvalidError) Error() string {
	var lines []string
	for i, f := range e.Fields {
		if i == maxNamed {
			lines = append(lines, fmt.Sprintf("and %d more", len(e.Fields)-i))
			break
		}
		lines = append(lines, f.Field+": "+f.Problem)
	}
	return "topology: " + strings.Join(lines, "\n")
}

// Named returns the fields to list.
func (e *InvalidError) Named() []FieldError { return e.Fields[:min(len(e.Fields), maxNamed)] }

// checker gathers the errors.
type checker struct {
	fields []FieldError
	dims   grid.Dims
	// unknown: the dims are wrong, or not given
	unknown bool

	ids       map[fault.NodeID]int
	coords    map[grid.Coord]int
	addresses map[netip.AddrPort]string
}

func (c *checker) bad(field, format string, args ...any) {
	c.fields = append(c.fields, FieldError{field, fmt.Sprintf(format, args...)})
}

// FromProto checks a topology. The error is an *InvalidError.
func FromProto(p *lofamov1.Topology) (*Topology, error) {
	c := &checker{ids: map[fault.NodeID]int{}, coords: map[grid.Coord]int{}, addresses: map[netip.AddrPort]string{}}
	dims, err := grid.ParseTorus(p.GetDims())
	if err != nil {
		c.bad("dims", "%v", err)
	}
	c.dims, c.unknown = dims, err != nil
	domains := c.domains(p.GetDomainLabels())
	nodes := make([]Node, 0, len(p.GetNodes()))
	for i, n := range p.GetNodes() {
		nodes = append(nodes, c.node(i, n))
	}
	if p.GetRegion() == "" {
		c.complete()
	} else if len(c.coords) == 0 {
		c.bad("nodes", "given no node with a place: want at least one in region %s", p.GetRegion())
	}
	if len(c.fields) > 0 {
		return nil, &InvalidError{c.fields}
	}
	t := New(dims, nodes, domains, p.GetRevision())
	t.Region = p.GetRegion()
	return t, nil
}

func (c *checker) domains(keys []string) []string {
	if len(keys) == 0 {
		return fault.DomainLabels()
	}
	fault.CheckDomainLabels(keys, func(field string, err error) { c.bad(field, "%v", err) })
	return slices.Clone(keys)
}

// node checks one entry.
func (c *checker) node(i int, p *lofamov1.TopologyNode) Node {
	field := "nodes[" + strconv.Itoa(i) + "]"
	n := Node{ID: fault.NodeID(p.GetId()), Spare: p.GetCoord() == "", Labels: p.GetLabels(), Proved: p.GetProved()}
	n.Joining = n.Spare && p.GetJoining()
	if !fault.IsName(p.GetId()) {
		c.bad(field+".id", "given %q: want 1 to 63 letters, digits, '-', '_' and '.', the first and last a letter or digit", p.GetId())
	}
	if j, ok := c.ids[n.ID]; ok {
		c.bad(field+".id", "given %s: want a name of its own: nodes[%d] has it", n.ID, j)
	} else {
		c.ids[n.ID] = i
	}
	if !n.Spare {
		n.Coord = c.coord(i, field+".coord", p.GetCoord())
	}
	for _, err := range fault.CheckLabels(n.Labels) {
		c.bad(field+".labels", "%v", err)
	}
	if k := len(p.GetService()); k > MaxServices {
		c.bad(field+".service", "given %d: want at most %d", k, MaxServices)
	}
	for k, text := range p.GetService() {
		if addr, ok := c.service(fmt.Sprintf("%s.service[%d]", field, k), text); ok {
			n.Service = append(n.Service, addr)
		}
	}
	return n
}

func (c *checker) coord(i int, field, text string) grid.Coord {
	at, err := grid.ParseCoord(text)
	if err == nil && !c.unknown {
		err = c.dims.Check(at)
	}
	if err != nil {
		c.bad(field, "%v", err)
		return at
	}
	if j, ok := c.coords[at]; ok {
		c.bad(field, "given %s: want a place of its own: nodes[%d] has it", at, j)
	} else {
		c.coords[at] = i
	}
	return at
}

func (c *checker) service(field, text string) (netip.AddrPort, bool) {
	addr, err := netip.ParseAddrPort(text)
	if err != nil || addr.Port() == 0 || addr.Addr().IsUnspecified() {
		c.bad(field, `given %q: want "ip:port" of one host, port 1 to 65535`, text)
		return addr, false
	}
	key := plain(addr)
	if other, ok := c.addresses[key]; ok {
		c.bad(field, "given %s: want an address of its own: %s has it", text, other)
		return addr, false
	}
	c.addresses[key] = field
	return addr, true
}

// maxMissing bounds the places without a node that are named.
const maxMissing = 8

// complete reports the vacant places.
func (c *checker) complete() {
	if c.dims.Nodes() == len(c.coords) || c.unknown {
		return
	}
	var missing []string
	for at := range c.dims.All() {
		if _, ok := c.coords[at]; ok {
			continue
		}
		if len(missing) == maxMissing {
			missing = append(missing, "…")
			break
		}
		missing = append(missing, at.String())
	}
	c.bad("nodes", "given nodes at %d places: want one at each of the %d of the %s torus: there is none at %s",
		len(c.coords), c.dims.Nodes(), c.dims, strings.Join(missing, " "))
}

// CheckPlaces refuses a topology of a region with other places than the region's. The configurations of all
// regions and of their parent divide the places, and one region alone cannot change that. The region only chooses
// the node at each of its places. The error is an *InvalidError.
func CheckPlaces(have, to *Topology) error {
	if have.Region == "" {
		return nil
	}
	if have.Dims != to.Dims {
		return &InvalidError{[]FieldError{{"dims", fmt.Sprintf("given %s: want %s, which all regions share", to.Dims, have.Dims)}}}
	}
	var bad []FieldError
	for _, n := range to.Placed() {
		if _, ours := have.Place(n.Coord); !ours {
			bad = append(bad, FieldError{"nodes", fmt.Sprintf("given %s at %s: want no place of another region than %s", n.ID, n.Coord,
				have.Region)})
		}
	}
	for _, n := range have.Placed() {
		if _, kept := to.Place(n.Coord); !kept {
			bad = append(bad, FieldError{"nodes", fmt.Sprintf("given none at %s: want one at each place of region %s", n.Coord, have.Region)})
		}
	}
	if len(bad) > 0 {
		return &InvalidError{bad}
	}
	return nil
}
