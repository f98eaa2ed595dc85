package express

import (
	"errors"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Data is one node's part in one-to-all data messages (seed 003 §4.3.5). These carry up to MaxData bytes from one
// node to all, such as the configuration at start-up (§4.4.1). A transfer has two phases, as in the paper. The set-up
// gives the topic, number, priority, length and sum; it is flooded, and the neighbour from which it came first is the
// parent. Then the pieces go down that tree: each node asks its parent for some pieces at a time, and gets each as
// soon as the parent has it.
//
// All holders give the same pieces, because the sum identifies the content. So a node whose parent falls silent asks
// another neighbour, and resumes where it was. A datum arrives whole or not at all. A request also acknowledges, so
// lost pieces are always requested again. That takes links that carry both ways.
//
// Of each topic a node keeps the newest datum, and announces it to neighbours that do not know it. So a node that
// starts late, or was cut off, gets it from any neighbour. A restarted node does too: it announces its restart by a
// state of topic 0, so none of this needs to be in the copy of a half.
//
// A datum of a higher priority goes before others: while its pieces come, the node asks for no others. In the paper
// it makes the source of the other one start again; here the other transfer resumes afterwards. A newer datum of the
// same topic ends an older one. Neither lasts if the datum never becomes whole (see unfinishedMost).
//
// # Trust
//
// A whole datum is delivered. It is kept, and its predecessor dropped, only when Judged says that it is good: an
// insider may forge numbers and sums. It is passed on before that, or each hop would take as long as the whole. A
// node does not accept or offer a refused one again. Each link may begin only some data a second, so that forged ones
// cost little. A datum that this node cannot judge is passed on and kept only for a while (Judged.For). Otherwise a
// forger could make the torus hold its data, and keep all lower numbers out, forever.
//
// # Bounds
//
// Two data for each topic. dataRate pieces a second for each link, dataBurst at once. Besides, there are frames of
// some 40 bytes: one a change and link, one for every four pieces, and repeats with backoff that ride on ticks.
//
//	no datum ──set-up──► asking ──last piece──► delivered ──good──► kept
//	                      │  ▲ └──nothing comes──► refused for a while ◄──bad, for ever──┘
//	                      └──┘ parent silent: the next neighbour. A newer set-up starts over with that.
//
// # Payloads, of frames of TypeEureka
//
//	kind 5, a state: the sender's data         kind 6, a want
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
//	                                            28        DataPiece bytes, the last piece the rest
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
	forget time.Time // when the first temporary one is forgotten; zero: there is none
	out    DataOutput
	stats  DataStats
}

const (
	// dataRate bounds the pieces sent by a link in a second, dataBurst those at once.
	dataRate, dataBurst = 400, 16
	// beginRate bounds the data that a link may begin in a second, beginBurst those at once.
	beginRate, beginBurst = 1, 4
	// dataWindow is the number of pieces requested at once. The node asks for more when half of them have come.
	dataWindow = 8
	// dataTries is the number of requests to a parent without a piece in return, before another neighbour's turn.
	dataTries = 3
	// dataSlowest bounds the wait between repeats, where mostSteps link periods are not longer.
	dataSlowest = time.Second
	// stalled is how long a datum of a higher priority may hold up others without progress. With progress it may do so
	// for half of the time after which the others are given up.
	stalled = time.Second
	// hellos is how often a node announces its start to a neighbour that does not answer. The neighbour may be of an
	// earlier version; after that it gets one announcement every helloLater.
	hellos     = 8
	helloLater = 30 * time.Second
	maxRefused = 64
	// givenUp is the time without a piece after which a node gives a datum up (givenUpPeriods of links, where that is
	// longer). So a datum that no node has cannot keep out an existing one. After refusedFor the transfer may begin
	// again.
	givenUp, refusedFor = 3 * time.Second, 10 * time.Second
	givenUpPeriods      = 128
	// spoiledLater bounds the wait after a datum that did not match its sum.
	spoiledLater = 30 * time.Second
)

// refusedData is not taken again until then; zero: never.
type refusedData struct {
	id     DataID
	length int // 0: any. The id does not prove the length, so a neighbour may announce a false one
	until  time.Time
}

// slot is a node's state of a topic.
type slot struct {
	kept  *datum
	next  *transfer // newer than kept
	since time.Time // begin of the first transfer after the last good datum; zero: none, or they ended long ago
	lost  time.Time // the last end of a transfer without a good datum
	wary  bool      // no good datum for unfinishedMost: only whole data count (see unfinished.go)
	turn  int       // index of the direction whose turn is next while wary
	poll  time.Time // of the neighbours
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
	asked    uint64 // requested from the parent, and not received
	parent   int    // index of a direction; -1: none
	asks     int    // without a piece
	again    time.Time
	step     time.Duration
	progress time.Time
	begun    time.Time
	// spoiled counts how often the pieces did not match the sum. From then on all pieces come from one neighbour. A
	// neighbour may pass on another one's forgery without knowing, so none is blamed; the node asks one after the
	// other, with backoff.
	spoiled int
}

func (t *transfer) whole() bool { return t.have == allPieces(len(t.body)) }

// dataPeer is the known state of a neighbour.
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
	whole  bool // it has all pieces
	tell   timer
	wants  DataID // of its requested pieces
	pieces uint64
}

// timer is a repetition with backoff.
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
	// Publish sends a datum to all nodes. The machine owns the body from then on.
	Publish struct {
		Topic    Topic // 1 to DataTopics
		Priority Priority
		Number   uint64 // above all that there were of the topic
		Body     []byte // 1 to MaxData bytes
	}
	// Judged reports whether a delivered datum is good: newer than the last good one, and from an authorized author.
	Judged struct {
		ID   DataID
		Good bool
		// For is how long a good datum is kept, and not accepted again after that: by then all nodes have forgotten
		// it. 0 means until there is a newer one.
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

// DataOutput lists the actions of a step: send frames of TypeEureka, and judge complete data.
type DataOutput struct {
	Send    []Send
	Deliver []Datum
	Bad     bool  // a received payload was malformed
	Err     error // of Publish
}

// ErrOld refuses to publish a datum older than the newest known one. Test with errors.Is.
var ErrOld = errors.New("there is newer data")

// DataStats count.
type DataStats struct {
	Published, Delivered uint64 // Delivered: whole, of others
	Refused              uint64 // judged bad
	Spoiled              uint64 // whole, but not matching the sum
	Sent                 uint64 // pieces
	Duplicates           uint64 // pieces that were there, or were not asked for
	Asked                uint64 // wants sent
	States               uint64 // sent
	Parents              uint64 // times that another neighbour was turned to
	Bad                  uint64 // payloads that make no sense
}
