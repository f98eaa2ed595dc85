package peers

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var (
	at9 = netip.MustParseAddrPort("10.0.0.9:7001")
	at1 = netip.MustParseAddrPort("10.0.0.1:7001")
)

func spare(number uint64) State {
	s := State{Number: number}
	s.Peers[grid.XPlus.Index()] = Peer{"spare-0", at9}
	return s
}

// A newer order applies, an older one does not, and two orders of one number do not take turns.
func TestHigherNumberedOrderApplies(t *testing.T) {
	other := State{Number: 7, Placed: true, Coord: grid.Coord{X: 1, Z: 1}}
	for _, tc := range []struct {
		what             string
		have, next, want State
		verdict          chanmask.Verdict
	}{
		{"the first", State{}, spare(7), spare(7), chanmask.Taken},
		{"the same again", spare(7), spare(7), spare(7), chanmask.Known},
		{"the same under a newer number", spare(7), spare(8), spare(8), chanmask.Taken},
		{"another of the same number", spare(7), other, spare(7), chanmask.Stale},
		{"an older one", spare(7), State{Number: 6}, spare(7), chanmask.Stale},
		{"one without a number", spare(7), State{}, spare(7), chanmask.Stale},
		{"back to the configuration", spare(7), State{Number: 9}, State{Number: 9}, chanmask.Taken},
	} {
		if got, v := tc.have.Order(tc.next); got != tc.want || v != tc.verdict {
			t.Errorf("%s: %v, %v: want %v, %v", tc.what, got, v, tc.want, tc.verdict)
		}
	}
	if !spare(7).Says(spare(9)) || spare(7).Says(other) {
		t.Error("the number is not what a word says")
	}
}

// The word stands above the configuration, link by link; without an address that of the configuration stays.
func TestOrderOverridesConfigurationPerLink(t *testing.T) {
	var configured [grid.NumDirections]Peer
	configured[grid.XPlus.Index()] = Peer{"n1-0-0", at1}
	configured[grid.YPlus.Index()] = Peer{"n0-1-0", at1}
	s := spare(3)
	if got := s.Over(configured); got[grid.XPlus.Index()] != (Peer{"spare-0", at9}) || got[grid.YPlus.Index()] != (Peer{"n0-1-0", at1}) {
		t.Errorf("%v", got)
	}
	s.Peers[grid.XPlus.Index()].Address = netip.AddrPort{}
	if got := s.Over(configured)[grid.XPlus.Index()]; got != (Peer{"spare-0", at1}) {
		t.Errorf("without an address: %v", got)
	}
	if got := (State{Number: 4}).Over(configured); got != configured {
		t.Errorf("without a word: %v", got)
	}
}

func TestFileRoundTrip(t *testing.T) {
	placed := spare(1 << 40)
	placed.Placed, placed.Coord = true, grid.Coord{X: 1, Y: 0, Z: 65535}
	placed.Peers[grid.ZMinus.Index()] = Peer{Node: "n1-0-0"}
	joined := placed
	joined.Torus = torus(t, "3x2x2 without 1,0,0 2,1,1")
	for _, want := range []State{{}, {Number: 3}, spare(7), placed, joined, {Number: 4, Torus: torus(t, "3x2x1")}} {
		b, err := want.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Decode(b); got != want || err != nil {
			t.Errorf("%v comes back as %v, %v", want, got, err)
		}
		for i := range b { // every single byte counts
			c := bytes.Clone(b)
			c[i] ^= 0x20
			if _, err := Decode(c); !errors.Is(err, ErrState) {
				t.Fatalf("byte %d damaged: %v", i, err)
			}
		}
		for _, c := range [][]byte{nil, b[:len(b)-1], append(bytes.Clone(b), 0), make([]byte, MaxSize+1)} {
			if _, err := Decode(c); !errors.Is(err, ErrState) {
				t.Errorf("%d of %d bytes: %v", len(c), len(b), err)
			}
		}
	}
}

func torus(t *testing.T, text string) grid.Dims {
	t.Helper()
	d, err := grid.ParseDims(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// The longest order that passes the checks of package servicenet can be stored.
func TestLongestOrderFitsFile(t *testing.T) {
	s := State{Number: 1<<63 + 1, Placed: true, Coord: grid.Coord{X: 65535, Y: 65535, Z: 65535}}
	far := netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:65535")
	for i := range s.Peers {
		s.Peers[i] = Peer{Node: fault.NodeID(strings.Repeat("n", 64)), Address: far}
	}
	var empty []string
	for x := 1; len(empty) < 500; x += 2 {
		empty = append(empty, fmt.Sprintf("%d,0,0", x))
	}
	s.Torus = torus(t, "1001x1x1 without "+strings.Join(empty, " "))
	if b, _ := s.Torus.AppendBinary(nil); len(b) < 1000 || len(b) > 1024 {
		t.Fatalf("torus of %d bytes: the test tests something else", len(b))
	}
	b, err := s.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Decode(b); got != s || err != nil {
		t.Errorf("%d bytes: %v, %v", len(b), got, err)
	}
}

// An order with a torus replaces the configured one, until an order without it.
func TestOrderedTorusOverridesConfigured(t *testing.T) {
	configured, grown := torus(t, "2x2x2"), torus(t, "3x2x2 without 2,1,0..2,1,1 2,0,1")
	s := State{Number: 4, Torus: grown}
	if s.In(configured) != grown || s.TorusName() != grown.Short() || !strings.Contains(s.String(), grown.Short()) {
		t.Errorf("%s: %s, %q", s, s.In(configured), s.TorusName())
	}
	if s := (State{Number: 5}); s.In(configured) != configured || s.TorusName() != "" || s.String() != "as configured" {
		t.Errorf("%s: %s, %q", s, s.In(configured), s.TorusName())
	}
	if s.Says(State{Number: 4}) {
		t.Error("the torus is no part of the content")
	}
}

func TestFromOrderRefuses(t *testing.T) {
	for what, o := range map[string]*lofamov1.PeerOrder{
		"no place":     {Number: 1, Coord: "somewhere"},
		"no direction": {Number: 1, Peers: []*lofamov1.Peer{{Direction: 7, Node: "n"}}},
		"no torus":     {Number: 1, Torus: []byte{2, 2}},
		"no address":   {Number: 1, Peers: []*lofamov1.Peer{{Direction: 1, Node: "n", Address: "somewhere"}}},
	} {
		if s, err := FromOrder(o); err == nil {
			t.Errorf("%s: %v", what, s)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []State{{}, spare(7), {Number: 3, Torus: grid.Dims{X: 3, Y: 2, Z: 1}}} {
		b, err := s.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(b)
		if err != nil {
			return
		}
		c, err := s.Append(nil)
		if err != nil {
			return // a name that no order has
		}
		if again, err := Decode(c); again != s || err != nil {
			t.Errorf("%v comes back as %v, %v", s, again, err)
		}
	})
}
