package express

import (
	"errors"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Data is one node's part in one-to-all data messages (seed 003 §4.3.5): data of up to MaxData bytes, that one node has and all
// are to have, as the configuration at start-up (§4.4.1). It goes in two phases, as in the paper. The set-up says what there is:
// topic, number, priority, length and sum; it is flooded, and from whom it came first is the parent. Then the pieces go down that
// tree: each node asks its parent for them, some at a time, and is given each as soon as the parent has it itself.
//
// Whoever has them gives the same pieces: the sum says what they are. So a node whose parent falls silent asks
// another neighbour, and goes on where it was. A datum arrives whole or not at all. Who asks also acknowledges: nothing is
// lost that is not asked for again. That takes links that carry both ways.
//
// Of each topic a node keeps the newest, and tells it to whoever does not know it. So who starts late, or was cut off, gets it
// from any neighbour; who was restarted too: it says so by a state of topic 0, and nothing of this needs to be in the copy of a
// half.
//
// A datum of a higher priority goes before others: while pieces of it come no others are asked for. In the paper it makes the source of the
// other one begin anew; here that goes on afterwards. A newer one of the same topic ends an older one.
//
// # Whom to believe
//
// What has come whole is delivered, and is only kept, and the one before it dropped, when Judged says that it is good: an
// insider may make up numbers and sums. It is passed on before that, or each hop would take as long as the whole. A refused one is not
// taken again, nor offered. Each link may begin some data a second, so that made up ones cost little. What nobody here can judge
// is passed on and kept for a while alone (Judged.For), or somebody who makes things up would have the torus hold them, and keep
// all lower numbers out, for ever.
//
// # Bounds
//
// Two data for each topic. dataRate pieces a second for each link, dataBurst at once; besides those frames of some 40 bytes: one
// a change and link, one for every four pieces, and repeats, ever more rarely, that ride on ticks.
//
//	no datum ──set-up──► asking ──last piece──► delivered ──good──► kept
//	                      │  ▲ └──nothing comes──► refused for a while ◄──bad, for ever──┘
//	                      └──┘ parent silent: the next neighbour. A newer set-up begins anew with that.
//
// # Payloads, of frames of TypeEureka
//
//	kind 5, a state: what the sender knows     kind 6, a want
//	offset size field                          offset size field
//	  0     1   5                                0     1   6
//	  1     1   topic; 0: it has just begun,     1     1   topic
//	            and knows nothing, or the        2     1   0
//	            answer to that                   3     1   flags: 1 these alone, else these too
//	  2     1   priority                         4     8   number
//	  3     1   flags: 1 answer me              12    16   sum
//	  4     8   number                          28     8   pieces that it wants
//	 12    16   sum
//	 28     4   length in bytes                kind 7, a piece
//	 32     8   pieces that it has               0     1   7
//	                                             1     1   topic
//	                                             2     1   index, from 0
//	                                             3     1   0
//	                                             4     8   number
//	                                            12    16   sum
//	                                            28        DataPiece bytes, the last piece what is left
//
// One goroutine owns it.
type Data struct {
	links  Mask
	period time.Duration
	fits   bool // a piece fits a frame
	ways   Ways
	slots  [DataTopics + 1]slot
	peers  [grid.NumDirections]dataPeer
	bad    []refusedData // the oldest first
	now    time.Time     // of the step
	busy   bool
	forget time.Time // when the first one that is kept for a while is forgotten; zero: there is none
	out    DataOutput
	stats  DataStats
}

const (
	// dataRate is how many pieces a second are sent by a link, dataBurst how many at once.
	dataRate, dataBurst = 400, 16
	// beginRate is how many data a second a link may begin, beginBurst how many at once.
	beginRate, beginBurst = 1, 4
	// dataWindow is how many pieces are asked for at once. When half of them have come more are.
	dataWindow = 8
	// dataTries is how often a parent is asked again without a piece, before it is another's turn.
	dataTries = 3
	// dataSlowest bounds the wait between repeats, where mostSteps link periods are not longer.
	dataSlowest = time.Second
	// stalled is for how long a datum of a higher priority that makes no progress holds up others.
	stalled = time.Second
	// hellos is how often a neighbour that does not answer is told that this node has begun, at first; it may be of an earlier version, and is
	// told once in helloLater after that.
	hellos     = 8
	helloLater = 30 * time.Second
	maxRefused = 64
	// givenUp is after how long without a piece a datum is given up, so that what nobody has keeps out nothing that there is
	// (givenUpPeriods of links, where that is longer); after refusedFor it may begin again.
	givenUp, refusedFor = 3 * time.Second, 10 * time.Second
	givenUpPeriods      = 128
	// spoiledLater bounds the wait after a datum has come that was not what its sum says.
	spoiledLater = 30 * time.Second
)

// refusedData is not taken again until then; zero: never.
type refusedData struct {
	id    DataID
	until time.Time
}

// slot is what a node has of a topic.
type slot struct {
	kept *datum
	next *transfer // newer than kept
}

type datum struct {
	id    DataID
	prio  Priority
	body  []byte
	lasts time.Duration // as Judged.For
	until time.Time     // it is kept; zero: until there is a newer one
}

// transfer is a datum that is on its way, or not judged yet.
type transfer struct {
	datum
	have     uint64
	asked    uint64 // of the parent, and not come
	parent   int    // index of a direction; -1: none
	asks     int    // without a piece
	again    time.Time
	step     time.Duration
	progress time.Time
	// spoiled is how often its pieces made what the sum does not say. From then on all of them are of one neighbour: who passes on
	// what another one has made up is none the wiser, so that nobody is blamed, but one after the other is asked, ever more rarely.
	spoiled int
}

func (t *transfer) whole() bool { return t.have == allPieces(len(t.body)) }

// dataPeer is what is known of a neighbour.
type dataPeer struct {
	met    bool // it has answered, or begun by itself: it understands data
	hellos int
	hello  timer
	topics [DataTopics + 1]peerTopic
	pieces bucket
	begins bucket
}

type peerTopic struct {
	id     DataID // newest that it knows; number 0: none
	prio   Priority
	length int
	tell   timer
	wants  DataID // of pieces that it has asked for
	pieces uint64
}

// timer is a repetition, ever more rarely.
type timer struct {
	at   time.Time
	step time.Duration
}

func (t *timer) due(now time.Time) bool { return !now.Before(t.at) }

func (t *timer) next(now time.Time, period time.Duration) {
	t.step = min(max(2*t.step, 2*period), slowest(period))
	t.at = now.Add(t.step)
}

func slowest(period time.Duration) time.Duration { return max(dataSlowest, mostSteps*period) }

// Events of Data, besides *Received (of a payload for which IsData holds), Tick and Ways.
type (
	// Publish has a datum told to all. The body is the machine's from then on.
	Publish struct {
		Topic    Topic // 1 to DataTopics
		Priority Priority
		Number   uint64 // above all that there were of the topic
		Body     []byte // 1 to MaxData bytes
	}
	// Judged says whether a datum that was delivered is good: newer than the last that was, and of whom may say so.
	Judged struct {
		ID   DataID
		Good bool
		// For is how long a good one is kept at most, and not taken again after that: by then all have forgotten it; 0: until there is
		// a newer one.
		For time.Duration
	}
)

func (Publish) expressEvent() {}
func (Judged) expressEvent()  {}

// Datum is one that has come whole. Its Body is not to be changed.
type Datum struct {
	DataID
	Priority Priority
	Body     []byte
}

// DataOutput is what is to be done: send frames of TypeEureka, and judge what has come.
type DataOutput struct {
	Send    []Send
	Deliver []Datum
	Bad     bool  // what was received makes no sense
	Err     error // of Publish
}

// ErrOld refuses to publish what is older than what the node knows. Test with errors.Is.
var ErrOld = errors.New("there is newer data")

// DataStats count.
type DataStats struct {
	Published, Delivered uint64 // Delivered: whole, of others
	Refused              uint64 // judged bad
	Spoiled              uint64 // whole, and not what the sum says
	Sent                 uint64 // pieces
	Duplicates           uint64 // pieces that were there, or were not asked for
	Asked                uint64 // wants sent
	States               uint64 // sent
	Parents              uint64 // times that another neighbour was turned to
	Bad                  uint64 // payloads that make no sense
}
