package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// wholeMap is the compact map: 10,000 nodes take 30 kB, plus the links that are not NORMAL. Strings have one
// character for each rank (x fastest).
type wholeMap struct {
	Revision uint64 `json:"revision"` // changes after it make it newer
	Dims     [3]int `json:"dims"`
	States   string `json:"states"` // U N S F, as states begin; '.': no node is there
	Causes   string `json:"causes"` // one hexadecimal digit of lofamov1.Cause
	Flags    string `json:"flags"`  // one hexadecimal digit: 1 maintenance, 2 warning, 4 inferred, 8 unreachable
	// Empty are the places of the torus that have no node, by rank.
	Empty []int `json:"empty,omitempty"`
	// Names are the ids that differ from the default id of their place, by rank.
	Names map[string]string `json:"names"`
	// Ordinary: the links are flows over an ordinary network, and the page draws tiles instead of a torus.
	Ordinary bool `json:"ordinary"`
	// DomainKey is the label by which the page groups tiles: the first key of failure domains that a node has. Empty: none has one.
	DomainKey string `json:"domainKey,omitempty"`
	// Domains are the values of that label, by rank.
	Domains map[string]string `json:"domains,omitempty"`
	// Directions that the torus has, by their indices: X+ is 0, Z- is 5.
	Directions []int `json:"directions"`
	// Links are the link ends that are not NORMAL.
	Links  []linkEnd   `json:"links"`
	Masked []linkEnd   `json:"masked"` // by their lower end, whatever their states
	Spares []spareNode `json:"spares"`
	Whole  standing    `json:"standing"`
	Preset string      `json:"preset"`
	// Bounds in milliseconds: from a fault to the commit, of one half and of a node.
	HalfBound int64 `json:"halfBoundMs"`
	NodeBound int64 `json:"nodeBoundMs"`
}

// linkEnd is [rank, direction, state, cause].
type linkEnd [4]int

type spareNode struct {
	ID    string `json:"id"`
	State string `json:"state"`
}

// standing is how much the answers of this replica are worth.
type standing struct {
	Leader   string `json:"leader"`
	Stale    bool   `json:"stale"`
	StaleMs  int64  `json:"staleMs"` // since the last contact with a quorum; -1: unknown, or not stale
	Revision uint64 `json:"revision"`
	// CutOff are a parent's regions that are cut off.
	CutOff []string `json:"cutOff"`
}

// The flags of a node.
const (
	flagMaintenance = 1 << iota
	flagWarning
	flagInferred
	flagUnreachable
)

// snapshot caches the latest answer, so that many simultaneous browsers (a replica was lost, a plane died) cost as
// little as one.
type snapshot struct {
	mu       sync.Mutex
	at       time.Time
	revision uint64 // of the answer
	b        []byte
}

// snapshotAge is the maximum age of a cached answer: the stream supplies the later changes anyway.
const snapshotAge = 500 * time.Millisecond

// bytes returns a cached answer of that revision or a later one, or else reads a new one.
func (c *snapshot) bytes(ctx context.Context, after uint64,
	read func(context.Context) (revision uint64, b []byte, err error)) ([]byte, error) {
	c.mu.Lock() // only one reads it at a time
	defer c.mu.Unlock()
	if c.b != nil && c.revision >= after && time.Since(c.at) < snapshotAge {
		return c.b, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	revision, b, err := read(ctx)
	if err != nil {
		return nil, err
	}
	c.at, c.revision, c.b = time.Now(), revision, b
	return b, nil
}

func (s *Server) serveMap(w http.ResponseWriter, r *http.Request, who visitor) {
	s.answer(w, r, who, func(ctx context.Context) ([]byte, error) { return s.wholeMap.bytes(ctx, 0, s.mapBytes) })
}

func (s *Server) mapBytes(ctx context.Context) (uint64, []byte, error) {
	m, err := s.read(ctx)
	if err != nil {
		return 0, nil, err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return 0, nil, fmt.Errorf("map: %w", err)
	}
	return m.Revision, b, nil
}

// read makes the map from three lists. They may be of different revisions: the changes since the oldest correct
// all of them.
func (s *Server) read(ctx context.Context) (*wholeMap, error) {
	nodes, err := s.cfg.Faults.ListNodes(ctx, &lofamov1.ListNodesRequest{Brief: true})
	if err != nil {
		return nil, err
	}
	links, err := s.cfg.Faults.ListLinks(ctx, &lofamov1.ListLinksRequest{
		Brief: true, States: []lofamov1.State{lofamov1.State_UNKNOWN, lofamov1.State_SICK, lofamov1.State_FAILED},
	})
	if err != nil {
		return nil, err
	}
	masks, err := s.cfg.Masks.ListMasks(ctx, &lofamov1.ListMasksRequest{})
	if err != nil && status.Code(err) != codes.Unavailable && status.Code(err) != codes.Unimplemented {
		return nil, err
	}
	return compact(nodes, links, masks.GetMasks())
}

// compact is a pure function of the three lists. It leaves out links and masks at places that the torus of the nodes' list lacks.
func compact(nodes *lofamov1.ListNodesResponse, links *lofamov1.ListLinksResponse, masks []*lofamov1.LinkMask) (*wholeMap, error) {
	info := nodes.GetCluster()
	dims, err := grid.ParseDims(info.GetDims())
	if err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	m := &wholeMap{
		Revision: min(nodes.GetRevision(), links.GetRevision()), Dims: [3]int{dims.X, dims.Y, dims.Z}, Names: map[string]string{},
		Links: []linkEnd{}, Masked: []linkEnd{}, Spares: []spareNode{}, Whole: standingOf(info, nodes.GetRevision()), Preset: info.GetPreset(),
		HalfBound: info.GetHalfBound().AsDuration().Milliseconds(), NodeBound: info.GetNodeBound().AsDuration().Milliseconds(),
	}
	for _, c := range dims.Empty() {
		m.Empty = append(m.Empty, dims.Rank(c))
	}
	for _, d := range dims.Links() {
		m.Directions = append(m.Directions, d.Index())
	}
	n := dims.Places()
	states, causes, flags := fill(n, '.'), fill(n, '0'), fill(n, '0')
	for _, node := range nodes.GetNodes() {
		if node.GetSpare() {
			m.Spares = append(m.Spares, spareNode{node.GetId(), node.GetState().String()})
			continue
		}
		at, err := rankOf(dims, node.GetCoord())
		if err != nil {
			return nil, err
		}
		states[at], causes[at], flags[at] = node.GetState().String()[0], digitOf(int(node.GetCause())), digitOf(flagsOf(node))
		if c := dims.At(at); node.GetId() != string(fault.DefaultNodeID(c)) {
			m.Names[strconv.Itoa(at)] = node.GetId()
		}
	}
	m.States, m.Causes, m.Flags = string(states), string(causes), string(flags)
	if m.Ordinary = info.GetOrdinary(); m.Ordinary {
		if m.DomainKey, m.Domains, err = domainsOf(dims, info.GetDomainLabels(), nodes.GetNodes()); err != nil {
			return nil, err
		}
	}
	for _, l := range links.GetLinks() {
		end, here, err := endOf(dims, l.GetCoord(), l.GetDirection())
		if err != nil {
			return nil, err
		}
		if here {
			m.Links = append(m.Links, linkEnd{end[0], end[1], int(l.GetState()), int(l.GetCause())})
		}
	}
	for _, l := range masks {
		end, here, err := endOf(dims, l.GetCoord(), l.GetDirection())
		if err != nil {
			return nil, err
		}
		if here {
			m.Masked = append(m.Masked, end)
		}
	}
	return m, nil
}

// domainsOf returns the first of the keys that a node with a place has as a label, and its values by rank; "" if no node has any.
func domainsOf(dims grid.Dims, keys []string, nodes []*lofamov1.Node) (key string, values map[string]string, err error) {
	for _, key := range keys {
		values := map[string]string{}
		for _, n := range nodes {
			value, ok := n.GetLabels()[key]
			if !ok || n.GetSpare() {
				continue
			}
			at, err := rankOf(dims, n.GetCoord())
			if err != nil {
				return "", nil, err
			}
			values[strconv.Itoa(at)] = value
		}
		if len(values) > 0 {
			return key, values, nil
		}
	}
	return "", nil, nil
}

func standingOf(info *lofamov1.ClusterInfo, revision uint64) standing {
	st := standing{Leader: info.GetLeader(), Stale: info.GetStale(), StaleMs: -1, Revision: revision, CutOff: []string{}}
	if age := info.GetStaleAge(); age != nil {
		st.StaleMs = age.AsDuration().Milliseconds()
	}
	for _, r := range info.GetRegions() {
		if r.GetState() != lofamov1.State_NORMAL {
			st.CutOff = append(st.CutOff, r.GetName())
		}
	}
	return st
}

func fill(n int, c byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = c
	}
	return b
}

// digitOf returns the hexadecimal digit of a number; '0' for a larger one, such as a cause of a later version.
func digitOf(n int) byte {
	const digits = "0123456789abcdef"
	if n < 0 || n >= len(digits) {
		return '0'
	}
	return digits[n]
}

func rankOf(dims grid.Dims, coord string) (int, error) {
	c, err := grid.ParseCoord(coord)
	if err == nil {
		err = dims.Check(c)
	}
	if err != nil {
		return 0, fmt.Errorf("map: %w", err)
	}
	return dims.Rank(c), nil
}

// endOf returns a link end. here is false if the list of nodes is of another revision than the link, and its torus has no such place.
func endOf(dims grid.Dims, coord, direction string) (end linkEnd, here bool, err error) {
	c, err := grid.ParseCoord(coord)
	if err != nil {
		return linkEnd{}, false, fmt.Errorf("map: %w", err)
	}
	d, err := grid.ParseDirection(direction)
	if err != nil {
		return linkEnd{}, false, fmt.Errorf("map: %w", err)
	}
	if !dims.Contains(c) {
		return linkEnd{}, false, nil
	}
	return linkEnd{dims.Rank(c), d.Index()}, true, nil
}

func flagsOf(n *lofamov1.Node) (f int) {
	for _, x := range []struct {
		is   bool
		flag int
	}{
		{n.GetMaintenance() != nil, flagMaintenance}, {len(n.GetWarnings()) > 0, flagWarning}, {n.GetInferred(),
			flagInferred}, {n.GetUnreachable(), flagUnreachable},
	} {
		if x.is {
			f |= x.flag
		}
	}
	return f
}
