package web

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestSnapshotIsSharedAndNeverOlder: many callers share one answer, but no caller gets one that is older than its own position, or an
// error of another caller's read.
func TestSnapshotIsSharedAndNeverOlder(t *testing.T) {
	var c snapshot
	reads, fails := 0, error(nil)
	ask := func(after uint64) string {
		t.Helper()
		b, err := c.bytes(t.Context(), after, func(context.Context) (uint64, []byte, error) {
			reads++
			return uint64(reads) * 10, []byte{'0' + byte(reads)}, fails
		})
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	for i, q := range []struct {
		after uint64
		fails error
		want  string
	}{
		{0, nil, "1"}, {10, nil, "1"}, {11, nil, "2"}, {10, nil, "2"}, {21, errors.New("no room"), "no room"}, {20, nil, "2"}, {21, nil, "4"},
	} {
		if fails = q.fails; ask(q.after) != q.want {
			t.Errorf("%d: after %d: want %s", i, q.after, q.want)
		}
	}
	c.at = c.at.Add(-snapshotAge)
	if got := ask(0); got != "5" {
		t.Errorf("%s: want an old one to be read anew", got)
	}
}

// joined is an API whose node n1-0-0 joins an empty place after the list of nodes.
type joined struct {
	quiet
	lofamov1.ReconfigureClient
	dims grid.Dims
}

func (j joined) ListNodes(context.Context, *lofamov1.ListNodesRequest, ...grpc.CallOption) (*lofamov1.ListNodesResponse, error) {
	return &lofamov1.ListNodesResponse{Revision: 7, Cluster: &lofamov1.ClusterInfo{Dims: j.dims.String()}}, nil
}

func (joined) ListLinks(context.Context, *lofamov1.ListLinksRequest, ...grpc.CallOption) (*lofamov1.ListLinksResponse, error) {
	return &lofamov1.ListLinksResponse{Revision: 8, Links: []*lofamov1.Link{
		{Node: "n1-0-0", Coord: "1,0,0", Direction: "X+", State: lofamov1.State_UNKNOWN, Cause: lofamov1.Cause_NONE},
		{Node: "n2-0-0", Coord: "2,0,0", Direction: "X-", State: lofamov1.State_SICK, Cause: lofamov1.Cause_LINK},
	}}, nil
}

func (joined) ListMasks(context.Context, *lofamov1.ListMasksRequest, ...grpc.CallOption) (*lofamov1.ListMasksResponse, error) {
	return &lofamov1.ListMasksResponse{Masks: []*lofamov1.LinkMask{
		{Node: "n1-0-0", Coord: "1,0,0", Direction: "X+"}, {Node: "n2-0-0", Coord: "2,0,0", Direction: "X+"},
	}}, nil
}

// TestMapOmitsLinksOfNodeThatJoined: a link and a mask of a node that the older list of nodes lacks do not fail the map. The changes since
// the map's revision add them.
func TestMapOmitsLinksOfNodeThatJoined(t *testing.T) {
	t.Parallel()
	dims, err := grid.Dims{X: 4, Y: 2, Z: 2}.Without(grid.Coord{X: 1})
	if err != nil {
		t.Fatal(err)
	}
	p, api := newPair(t), joined{dims: dims}
	h := httptest.NewServer(p.page(Config{Self: "s1", Faults: api, Masks: api}, p.registry))
	t.Cleanup(h.Close)
	p.pages["s1"] = h.URL
	_, cookie := p.login("s1", p.loginToken())
	resp := p.call(http.MethodGet, "s1", "/api/map", nil, cookie) //nolint:bodyclose // call does
	var m struct {
		Revision      uint64
		Links, Masked []linkEnd
	}
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v: want %d", resp.StatusCode, err, http.StatusOK)
	}
	at := dims.Rank(grid.Coord{X: 2})
	links := []linkEnd{{at, grid.XMinus.Index(), int(lofamov1.State_SICK), int(lofamov1.Cause_LINK)}}
	if masked := []linkEnd{{at, grid.XPlus.Index()}}; m.Revision != 7 || !slices.Equal(m.Links, links) || !slices.Equal(m.Masked, masked) {
		t.Errorf("%+v: want revision 7, links %v, masks %v", m, links, masked)
	}
}

// TestPageHasDigitAndNameOfEveryCause: the map sends each cause as a digit, which the page reads as an index of its names.
func TestPageHasDigitAndNameOfEveryCause(t *testing.T) {
	model, err := os.ReadFile(filepath.Join("..", "..", "..", "web", "src", "model.ts"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`causeNames = \[(.*)\] as const`).FindSubmatch(model)
	if list == nil {
		t.Fatal("model.ts has no causeNames")
	}
	names := strings.Split(string(list[1]), ", ")
	for number, name := range lofamov1.Cause_name {
		m, err := compact(&lofamov1.ListNodesResponse{Cluster: &lofamov1.ClusterInfo{Dims: "1x1x1"}, Nodes: []*lofamov1.Node{
			{Id: "n0-0-0", Coord: "0,0,0", State: lofamov1.State_SICK, Cause: lofamov1.Cause(number)},
		}}, &lofamov1.ListLinksResponse{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := strconv.ParseInt(m.Causes, 16, 0); err != nil || got != int64(number) {
			t.Errorf("cause %s is sent as %q: want the digit of %d", name, m.Causes, number)
		}
		if number <= int32(lofamov1.Cause_NONE) {
			name = ""
		}
		if int(number) >= len(names) || names[number] != "'"+name+"'" {
			t.Errorf("causeNames in model.ts has %d names: want %q at %d", len(names), name, number)
		}
	}
}

// TestMapOfOrdinaryClusterHasDomains: the tiles are grouped by the first key of failure domains that a node has. A torus has none.
func TestMapOfOrdinaryClusterHasDomains(t *testing.T) {
	node := func(id, coord, key, value string) *lofamov1.Node {
		return &lofamov1.Node{Id: id, Coord: coord, State: lofamov1.State_NORMAL, Labels: map[string]string{key: value}}
	}
	nodes := []*lofamov1.Node{node("a", "0,0,0", "switch", "s1"), node("b", "1,0,0", "switch", "s2"), node("c", "2,0,0", "other", "x"),
		{Id: "d", Spare: true, Labels: map[string]string{"rack": "r1"}}}
	for ordinary, want := range map[bool]map[string]string{true: {"0": "s1", "1": "s2"}, false: nil} {
		m, err := compact(&lofamov1.ListNodesResponse{Nodes: nodes, Cluster: &lofamov1.ClusterInfo{Dims: "3x1x1", Ordinary: ordinary,
			DomainLabels: []string{"rack", "switch", "other"}}}, &lofamov1.ListLinksResponse{}, nil)
		if err != nil || m.Ordinary != ordinary || !maps.Equal(m.Domains, want) || (m.DomainKey == "switch") != ordinary {
			t.Errorf("ordinary %v: %+v, %v: want %v", ordinary, m, err, want)
		}
	}
}
