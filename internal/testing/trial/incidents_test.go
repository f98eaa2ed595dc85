package trial

import (
	"slices"
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// parsed reads faults as "0,0,0 kill-host".
func parsed(t *testing.T, list ...string) (out []Fault) {
	t.Helper()
	for _, s := range list {
		place, text, _ := strings.Cut(s, " ")
		at, err := grid.ParseCoord(place)
		if err != nil {
			t.Fatal(err)
		}
		f, err := ParseFault(at, text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

func TestRootsOfFaults(t *testing.T) {
	racks := Racks{"r0": {{X: 0}, {X: 1, Y: 1}, {X: 2, Y: 2}}, "r1": {{X: 1}, {X: 2, Y: 1}, {Y: 2}}}
	for _, tc := range []struct {
		faults string
		roots  string
	}{
		{"0,0,0 kill-node", "n0-0-0/node"},
		{"0,0,0 kill-host; 0,0,0 hang-dnp", "n0-0-0/node"},
		{"0,0,0 kill-dnp; 0,0,0 cut-service", "n0-0-0/node"},
		{"0,0,0 kill-host; 0,0,0 cut-service; 0,0,0 sensor memory-ue 5", "n0-0-0/host"},
		{"0,0,0 kill-dnp; 0,0,0 sensor temperature 110; 2,0,0 cut-link X+", "n0-0-0/dnp"},
		{"0,0,0 kill-host; 0,0,0 sensor temperature 110", "n0-0-0/host n0-0-0/temperature"},
		{"0,0,0 cut-link X-; 2,0,0 cut-link X+", "n2-0-0/link/X+"},
		{"0,0,0 kill-node; 1,1,0 kill-node", "n0-0-0/node n1-1-0/node"},
		{"0,0,0 kill-node; 1,1,0 kill-node; 2,2,0 hang-node", "label/rack=r0"},
		{"0,0,0 kill-node; 1,1,0 kill-node; 2,2,0 kill-node; 1,0,0 kill-node", "label/rack=r0 n1-0-0/node"},
		{"0,0,0 cut-service; 1,1,0 cut-service; 2,2,0 cut-service; 2,2,0 kill-dnp", "label/rack=r0/SERVICE_NETWORK n2-2-0/node"},
		{"0,0,0 cut-service; 1,1,0 cut-service; 2,2,0 cut-service; 2,2,0 kill-host", "label/rack=r0/SERVICE_NETWORK n2-2-0/host"},
		{"0,0,0 cut-service; 2,2,0 cut-service", "n0-0-0/service-network n2-2-0/service-network"},
	} {
		got := Roots(grid.Dims{X: 3, Y: 3, Z: 1}, racks, parsed(t, strings.Split(tc.faults, "; ")...), nil)
		slices.Sort(got)
		if strings.Join(got, " ") != tc.roots {
			t.Errorf("%s: %q: want %s", tc.faults, got, tc.roots)
		}
	}
	row := GroupFault{Group: "row/Y=0,Z=0", Faults: parsed(t, "0,0,0 kill-node", "1,0,0 kill-node", "2,0,0 kill-node")}
	got := Roots(grid.Dims{X: 3, Y: 3, Z: 1}, racks, parsed(t, "1,1,0 kill-node"), []GroupFault{row})
	if want := []string{"n1-1-0/node", "row/Y=0,Z=0"}; !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("a row and a node: %q: want %q", got, want)
	}
}

func TestRootOfIncident(t *testing.T) {
	dims := grid.Dims{X: 3, Y: 3, Z: 1}
	for _, tc := range []struct {
		in   *lofamov1.Incident
		want string
	}{
		{&lofamov1.Incident{Node: "n0-0-0", Coord: "0,0,0", Component: "link/X-"}, "n2-0-0/link/X+"},
		{&lofamov1.Incident{Node: "n0-0-0", Coord: "0,0,0", Component: "link/X+"}, "n0-0-0/link/X+"},
		{&lofamov1.Incident{Node: "n0-0-0", Coord: "0,0,0", Component: "host"}, "n0-0-0/host"},
		{&lofamov1.Incident{Component: "group", Group: "label/rack=r0"}, "label/rack=r0"},
	} {
		if got := RootOf(dims, tc.in); got != tc.want {
			t.Errorf("%v: %s: want %s", tc.in, got, tc.want)
		}
	}
}

func TestIncidentScoreFindsDifferences(t *testing.T) {
	var s IncidentScore
	dims := grid.Dims{X: 4, Y: 4, Z: 1}
	merged := func(open string, want ...string) IncidentRound {
		return IncidentRound{Dims: dims, Kinds: []string{"a", "b"}, Want: want, Open: []string{open}, Opened: 1}
	}
	for _, tc := range []struct {
		round                    IncidentRound
		missed, spurious, merged int
	}{
		{IncidentRound{Kinds: []string{"a"}, Want: []string{"n/x"}, Open: []string{"n/x"}, Opened: 1, Ever: 1, Most: 1}, 0, 0, 0},
		{IncidentRound{Kinds: []string{"a"}, Want: []string{"n/x"}}, 1, 0, 0},
		{IncidentRound{Kinds: []string{"a"}, Want: []string{"n/x"}, Open: []string{"m/x", "n/x"}, Opened: 2, Ever: 2, Most: 2}, 0, 1, 0},
		{IncidentRound{Kinds: []string{"a"}, Want: []string{"n/x"}, Open: []string{"n/x"}, Opened: 3, Ever: 4, Most: 3}, 0, 2, 0},
		{merged("n1-0-0/node", "n1-0-0/link/X+", "n1-0-0/link/Y+"), 0, 0, 1},
		{merged("n0-0-0/node", "n0-3-0/link/Y+", "n3-0-0/link/X+"), 0, 0, 1},
		{merged("n1-0-0/node", "n1-0-0/link/X+", "n2-0-0/link/Y+"), 2, 1, 0},
		{merged("n3-3-0/node", "n1-0-0/link/X+", "n1-0-0/link/Y+"), 2, 1, 0},
		{merged("label/rack=r0/node", "n1-0-0/link/X+", "n1-0-0/link/Y+"), 2, 1, 0},
		{IncidentRound{Kinds: []string{"a", "b"}, Want: []string{"n/host", "n/link/Y+"}, Open: []string{"n/node"}, Opened: 1}, 2, 1, 0},
	} {
		was := s
		bad := s.Add(tc.round)
		missed, spurious, merged := s.Missed-was.Missed, s.Spurious-was.Spurious, s.Merged-was.Merged
		if missed != tc.missed || spurious != tc.spurious || merged != tc.merged || (len(bad) > 0) != (missed+spurious > 0) {
			t.Errorf("%+v: missed %d, spurious %d, merged %d, %q: want %d, %d, %d", tc.round, missed, spurious, merged, bad, tc.missed,
				tc.spurious, tc.merged)
		}
	}
	if k := s.Kinds[0]; s.Rounds != 10 || s.Faults != 16 || s.Several != 6 || k.Faults != 10 || k.Alone != 4 || k.Wrong != 7 || k.Most != 3 ||
		k.Opened != 4 {
		t.Errorf("%+v of %+v", k, s)
	}
}

func TestOutageExcusesIncidentThatClosedAgain(t *testing.T) {
	for _, tc := range []struct {
		open []string
		bad  int
	}{{[]string{"n/x"}, 0}, {[]string{"m/x", "n/x"}, 1}, {nil, 1}} {
		var s IncidentScore
		bad := s.Add(IncidentRound{Kinds: []string{"a"}, Want: []string{"n/x"}, Open: tc.open, Opened: 3, Ever: 3, Outage: true})
		if len(bad) != tc.bad || s.Spurious != 2 {
			t.Errorf("open %v: %q and %d spurious: want %d and 2", tc.open, bad, s.Spurious, tc.bad)
		}
	}
}
