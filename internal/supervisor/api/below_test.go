package api

import (
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// TestRegionDetailsAreAddedToSameVerdict: a region's details are added to the same verdict, and to no other.
func TestRegionDetailsAreAddedToSameVerdict(t *testing.T) {
	ev := []*lofamov1.Evidence{{Kind: "SILENCE"}}
	more := func(state lofamov1.State) *lofamov1.Node {
		return &lofamov1.Node{State: state, Cause: lofamov1.Cause_LINK, Age: durationpb.New(5), Revision: 99, HostEpoch: 3,
			HostKernel: &lofamov1.KernelVerdict{Why: "a"}, DnpKernel: &lofamov1.KernelVerdict{Why: "b"},
			HardwareWatchdog: &lofamov1.HardwareWatchdog{Armed: true},
			Components: []*lofamov1.Component{
				{Name: "link/X+", State: lofamov1.State_FAILED, Evidence: ev}, {Name: "host", State: lofamov1.State_NORMAL, Evidence: ev},
			}}
	}
	for name, tc := range map[string]struct {
		more   *lofamov1.Node
		filled bool
	}{
		"the same verdict": {more(lofamov1.State_SICK), true}, "a newer one": {more(lofamov1.State_NORMAL), false}, "no word": {nil, false},
	} {
		n := &lofamov1.Node{State: lofamov1.State_SICK, Cause: lofamov1.Cause_LINK, Revision: 7, Components: []*lofamov1.Component{
			{Name: "host", State: lofamov1.State_UNKNOWN}, {Name: "link/X+", State: lofamov1.State_FAILED},
		}}
		fill(n, tc.more)
		if got := n.GetAge() != nil && n.GetHostEpoch() == 3 && len(n.GetComponents()[1].GetEvidence()) == 1 &&
			n.GetHostKernel().GetWhy() == "a" && n.GetDnpKernel().GetWhy() == "b" && n.GetHardwareWatchdog().GetArmed(); got != tc.filled {
			t.Errorf("%s: %v", name, n)
		}
		if n.GetRevision() != 7 || n.GetState() != lofamov1.State_SICK || n.GetComponents()[0].GetEvidence() != nil {
			t.Errorf("%s: the verdict is no longer the parent's: %v", name, n)
		}
	}
	x := &lofamov1.ExplainResponse{State: lofamov1.State_SICK, Summary: "own"}
	fillExplanation(x, &lofamov1.ExplainResponse{State: lofamov1.State_FAILED, Summary: "newer"})
	fillExplanation(x, nil)
	if x.GetSummary() != "own" {
		t.Error("another verdict's explanation is taken")
	}
	if fillExplanation(x, &lofamov1.ExplainResponse{State: lofamov1.State_SICK, Rule: "quorum",
		Summary: "theirs"}); x.GetSummary() != "theirs" || x.GetRule() != "quorum" {
		t.Errorf("%v", x)
	}
	x = &lofamov1.ExplainResponse{State: lofamov1.State_UNKNOWN, Summary: "own"}
	fillExplanation(x, &lofamov1.ExplainResponse{State: lofamov1.State_ABSENT, Summary: "theirs"})
	if x.GetState() != lofamov1.State_ABSENT || x.GetSummary() != "theirs" {
		t.Errorf("a part that the node does not have: %v", x)
	}
}
