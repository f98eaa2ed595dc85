package sim

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/config"
)

var (
	movesSeed  = flag.Uint64("moves.seed", 0, "play the story of joins and leaves of this seed alone")
	movesLong  = flag.Int("moves.long", 0, "play one story of so many joins and leaves, with -moves.seed")
	movesSeeds = flag.Int("moves.seeds", 0, "how many stories each test of joins, moves or returns plays; 0: as in a run of all tests")
)

// Nodes join and leave at random times, with all other faults between: supervisors accuse no healthy node, find every
// death, and blame no joiner before its first report. Everything is NORMAL at the end.
func TestJoinsAndLeaves(t *testing.T) {
	if *movesLong != 0 {
		if err := NewMovingCampaign(*movesSeed, *movesLong).Run(); err != nil {
			t.Error(err)
		}
		return
	}
	if *movesSeed != 0 {
		playMoves(t, *movesSeed)
		return
	}
	eachStory(t, *movesSeeds, 60, playMoves)
}

// TestFaultsBeforeTheFirstReport: joiners and moving nodes have real faults before their first report. A verdict on such a fault is not
// false.
func TestFaultsBeforeTheFirstReport(t *testing.T) {
	t.Run("the service network of a joiner", func(t *testing.T) { playMoves(t, 201) })
	t.Run("a sensor of a joiner", func(t *testing.T) { playTransfers(t, 62) })
	t.Run("the DNP half of a node that moves", func(t *testing.T) { playTransfers(t, 262) })
	t.Run("the DNP half of another, preset fast", func(t *testing.T) { playTransfers(t, 207) })
}

// TestLeaderRestoresNodesOnTheirWay: the leader ends between the change of the topology and its first commit of the moved nodes. The next
// leader's changes start from UNKNOWN without a cause, as in the committed map.
func TestLeaderRestoresNodesOnTheirWay(t *testing.T) {
	for _, seed := range []uint64{64, 128, 268} {
		playTransfers(t, seed)
	}
}

// TestFloodDoesNotReturnWhenLinksMove: a node's links lead to other nodes before it forwards a message that it holds. It must not send the
// message back, because the receiver would count a breach of the protocol.
func TestFloodDoesNotReturnWhenLinksMove(t *testing.T) { playMoves(t, 942) }

// TestDeathAfterMoveIsNamedInTime: the neighbours of a node move while the leader still waits for its links, and then it dies. The leader
// names the death as soon as it has waited long enough. In story 632, the leader has waited for long enough and is replaced, and its
// successor does not wait again.
func TestDeathAfterMoveIsNamedInTime(t *testing.T) {
	for _, seed := range []uint64{189, 251, 632} {
		playTransfers(t, seed)
	}
}

// TestHalvesFollowAtDifferentTimes: the DNP half has followed a change of places, and its host half has not. The service network of the new
// neighbour does not work, and that of the earlier one does.
func TestHalvesFollowAtDifferentTimes(t *testing.T) { playTransfers(t, 515) }

// TestNextLeaderWaitsForLinkToAnotherPeer: a link of a node that has moved gets another peer, and the leader ends. Its successor calls the
// link FAILED only once the link has had its time.
func TestNextLeaderWaitsForLinkToAnotherPeer(t *testing.T) { playTransfers(t, 531) }

// Nodes move to other places, and leaders, nodes and their neighbours die meanwhile: supervisors accuse no healthy node, name every
// death, and everything is NORMAL at the end.
func TestNodesMoveToOtherPlaces(t *testing.T) {
	eachStory(t, *movesSeeds, 30, playTransfers)
}

// playTransfers plays one story of nodes that move.
func playTransfers(t *testing.T, seed uint64) {
	t.Helper()
	playPlan(t, NewTransferPlan(seed), fmt.Sprintf("TestNodesMoveToOtherPlaces -first %d -moves.seeds 1", seed))
}

// playReturns plays one story of nodes that leave and return.
func playReturns(t *testing.T, seed uint64) {
	t.Helper()
	playPlan(t, NewReturnPlan(seed), fmt.Sprintf("TestNodesReturnToTheirPlaces -first %d -moves.seeds 1", seed))
}

// playMoves plays one story of joins and leaves.
func playMoves(t *testing.T, seed uint64) {
	t.Helper()
	playPlan(t, NewMovingPlan(seed), fmt.Sprintf("TestJoinsAndLeaves -moves.seed %d", seed))
}

// playPlan plays a story, and reports the shortest one with the same failure.
func playPlan(t *testing.T, p Plan, again string) {
	t.Helper()
	if err := p.Run(); err != nil {
		short, err := p.Shrink(err)
		t.Errorf("%s\nagain: go test ./internal/sim -run %s", short.Story(err), again)
	}
}

// TestLinkOfTwoNodesThatReturn plays a reduced story. Two neighbours leave and return, their halves run on and report that the link between
// them works, and then one of the halves begins the link again.
func TestLinkOfTwoNodesThatReturn(t *testing.T) {
	acts := `return 0,0,1 1149ms; run 1148ms; kill 0,1,1 node; run 7105ms; return 2,0,1 54ms; run 2163ms; run 1380ms; return 1,1,0 482ms;
		run 2645ms; kill 2,1,0 node; run 340ms; return 0,0,0 1482ms; run 1259ms; return 2,1,1 1407ms; run 33ms; return 2,0,1 1185ms; run 947ms;
		leave 2,0,0; run 984ms; return 1,0,1 427ms; run 2377ms`
	p := Plan{Dims: parseShape("3x2x2"), Preset: config.PresetDefault, Interfaces: 1, Supervisors: 3, Seed: 31, Moves: true, Ordered: true,
		Acts: strings.Split(acts, ";")}
	if err := p.Run(); err != nil {
		t.Error(p.Story(err))
	}
}

// TestNodesReturnToTheirPlaces: nodes lose their places and get them again within seconds, so that some halves are stopped and others run
// on.
func TestNodesReturnToTheirPlaces(t *testing.T) {
	eachStory(t, *movesSeeds, 30, playReturns)
}
