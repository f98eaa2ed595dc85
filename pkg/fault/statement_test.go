package fault

import (
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestStatementsByKindAndComponent checks which half may state which kind about which component. The first list
// contains all statements that agents make.
func TestStatementsByKindAndComponent(t *testing.T) {
	link := Link(grid.XPlus)
	for _, tc := range []struct {
		half Half
		o    Observation
		want string // "": allowed
	}{
		{HalfHost, Observation{Node: "a", Component: ComponentHost, State: Failed, Kind: KindSelf}, ""},
		{HalfHost, Observation{Component: ComponentMemory, State: Failed, Kind: KindSelf}, ""},
		{HalfHost, Observation{Component: ComponentDNP, State: Failed, Kind: KindWatchdog}, ""},
		{HalfDNP, Observation{Component: ComponentHost, State: Failed, Kind: KindWatchdog}, ""},
		{HalfDNP, Observation{Component: ComponentDNPCore, State: Sick, Kind: KindSelf}, ""},
		{HalfHost, Observation{Component: ComponentTemperature, State: Failed, Kind: KindSelf}, ""},
		{HalfHost, Observation{Component: link, State: Failed, Kind: KindSelf}, ""}, // its own port
		{HalfHost, Observation{Component: link, State: Failed, Kind: KindSilence}, ""},
		{HalfHost, Observation{Component: ComponentBus, State: Failed, Kind: KindSilence}, ""},
		{HalfDNP, Observation{Component: ComponentBus, State: Normal, Kind: KindSelf}, ""},
		{HalfDNP, Observation{Component: link, State: Failed, Kind: KindHandshake}, ""},
		{HalfHost, Observation{Component: link, State: Sick, Kind: KindErrorRatio}, ""},
		{HalfHost, Observation{Component: link, State: Sick, Kind: KindDescriptor}, ""},
		{HalfHost, Observation{Component: ComponentDNP, State: Normal, Kind: KindSelf}, ""}, // a probe of the self-test
		{HalfHost, Observation{Node: "b", Component: ComponentHost, State: Failed, Kind: KindDescriptor}, ""},
		{HalfDNP, Observation{Node: "b", Component: ComponentMemory, State: Unknown, Kind: KindDescriptor}, ""},

		{HalfHost, Observation{Component: ComponentNode, State: Failed, Kind: KindSelf}, "observation.component: given node"},
		{HalfHost, Observation{Component: ComponentHost, State: Failed, Kind: KindVotes}, "given VOTES of host FAILED by a host half"},
		{HalfHost, Observation{Component: link, State: Failed, Kind: KindChallenge}, "given CHALLENGE"},
		{HalfHost, Observation{Component: link, State: Failed, Kind: KindDigest}, "given DIGEST"},
		{HalfHost, Observation{Component: link, State: Failed, Kind: KindGossip}, "given GOSSIP"},
		{HalfHost, Observation{Node: "b", Component: ComponentHost, State: Failed, Kind: KindSelf}, "given SELF of host FAILED"},
		{HalfHost, Observation{Node: "b", Component: link, State: Failed, Kind: KindDescriptor}, "want DESCRIPTOR on the host"},
		{HalfHost, Observation{Node: "b", Component: ComponentDNP, State: Failed, Kind: KindDescriptor}, "want DESCRIPTOR on the host"},
		{HalfHost, Observation{Component: link, State: Failed, Kind: KindDescriptor}, "or on a SICK link"},
		{HalfHost, Observation{Component: ComponentMemory, State: Sick, Kind: KindErrorRatio}, "want that kind on a link or the bus"},
		{HalfHost, Observation{Component: ComponentBus, State: Sick, Kind: KindDescriptor}, "or on a SICK link"},
		{HalfHost, Observation{Node: "b", Component: ComponentBus, State: Failed, Kind: KindSilence}, "want DESCRIPTOR on the host"},
		{HalfHost, Observation{Component: ComponentHost, State: Failed, Kind: KindSilence}, "want that kind on a link"},
		{HalfHost, Observation{Component: ComponentHost, State: Failed, Kind: KindWatchdog}, "want WATCHDOG on the dnp half"},
		{HalfDNP, Observation{Component: ComponentMemory, State: Failed, Kind: KindWatchdog}, "want WATCHDOG on the host half"},
		{HalfDNP, Observation{Component: ComponentHost, State: Failed, Kind: KindSelf}, "want WATCHDOG on the other half"},
	} {
		err := tc.o.CheckStatement("a", tc.half)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%+v by a %s half: %v: want %q", tc.o, tc.half, err, tc.want)
		}
	}
}
