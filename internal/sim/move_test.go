package sim

import (
	"flag"
	"fmt"
	"testing"
)

var (
	movesSeed  = flag.Uint64("moves.seed", 0, "play the story of joins and leaves of this seed alone")
	movesLong  = flag.Int("moves.long", 0, "play one story of so many joins and leaves, with -moves.seed")
	movesSeeds = flag.Int("moves.seeds", 0, "how many stories TestJoinsAndLeaves plays; 0: as many as a run of all tests has time for")
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

// TestReturnsCauseNoFalseVerdicts plays stories that once failed.
func TestReturnsCauseNoFalseVerdicts(t *testing.T) {
	for name, seed := range map[string]uint64{
		"messages for a neighbour that is away fill all slots, so a node without a host half is silent":             54,
		"two neighbours return, say that the link between them works, and then begin the link again":                31,
		"a node has lost its links by the order that took its place away, and a dead neighbour is the only witness": 412,
	} {
		t.Run(name, func(t *testing.T) { playReturns(t, seed) })
	}
}

// TestNodesReturnToTheirPlaces: nodes lose their places and get them again within seconds, so that some halves are stopped and others run
// on.
func TestNodesReturnToTheirPlaces(t *testing.T) {
	eachStory(t, *movesSeeds, 30, playReturns)
}
