package export

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// FeedConfig of a feed.
type FeedConfig struct {
	Region string
	Dims   string // of the whole torus
	// Window and WindowBytes bound the changes in flight to the parent, in number and in bytes. Reading stops at the
	// bound, so that a slow parent costs this side no memory. 0 stands for 512 and for 16 MiB. A snapshot may exceed
	// the bound.
	Window, WindowBytes int
}

// Feed passes a region's changes on, at the region's leader.
//
//	off ──begin──► greeting ──resume──► following ◄──► paused (the window is full)
//	▲                 │                    │ the store has compacted the next change
//	│                 └──resume from 0──► copying ──copied──► following
//	└── the stream ended, from any
type Feed struct {
	cfg   FeedConfig
	state feedState
	sent  uint64 // revision
	next  uint64 // number of the first event that was not sent
	open  []sentChange
	bytes int
	beat  uint64 // newest revision without later changes to the map
	begin uint64 // revision of the store when the stream began
}

type sentChange struct {
	revision uint64
	bytes    int
}

type feedState uint8

const (
	feedOff feedState = iota
	feedGreeting
	feedFollowing
	feedPaused
	feedCopying
)

// String returns the state's name.
func (s feedState) String() string {
	switch s {
	case feedOff:
		return "off"
	case feedGreeting:
		return "greeting"
	case feedFollowing:
		return "following"
	case feedPaused:
		return "paused"
	case feedCopying:
		return "copying"
	}
	return fmt.Sprintf("feedState(%d)", uint8(s))
}

// NewFeed returns a feed that is off.
func NewFeed(cfg FeedConfig) *Feed {
	if cfg.Window == 0 {
		cfg.Window = 512
	}
	if cfg.WindowBytes == 0 {
		cfg.WindowBytes = 16 << 20
	}
	return &Feed{cfg: cfg}
}

// Input is something that happens to a feed.
type Input interface{ feedInput() }

// The inputs of a feed.
type (
	// Begin starts a stream. It identifies the region's own store and its position.
	Begin struct {
		Term, Revision, NextEvent uint64
		Store                     string
		FirstEvent                uint64 // first one unique to this store
		From                      string // the store whose snapshot it was put back to
	}
	// Resume is the parent's answer to the hello.
	Resume struct{ Revision, NextEvent uint64 }
	// Update is a change from the store. Without events and documents it says only that the map did not change up to
	// its revision.
	Update struct{ *lofamov1.UpstreamChange }
	// Compacted says that the store no longer has the next change.
	Compacted struct{}
	// Copied is all that the store has.
	Copied struct{ *lofamov1.UpstreamChange }
	// Acked says that the parent has all changes up to a revision.
	Acked struct{ Revision uint64 }
	// Beat says that it is time to send a sign of life.
	Beat struct{}
	// Ended says that the stream has ended.
	Ended struct{}
)

func (Begin) feedInput()     {}
func (Resume) feedInput()    {}
func (Update) feedInput()    {}
func (Compacted) feedInput() {}
func (Copied) feedInput()    {}
func (Acked) feedInput()     {}
func (Beat) feedInput()      {}
func (Ended) feedInput()     {}

// Read is an order for the reader of the store.
type Read uint8

// Read orders. Every order except ReadOn cancels the current read.
const (
	ReadOn     Read = iota // go on as before
	ReadNone               // stop reading
	ReadFollow             // the changes after a revision
	ReadCopy               // the whole store, and the events from a number on
)

// String returns the name.
func (r Read) String() string {
	switch r {
	case ReadOn:
		return "on"
	case ReadNone:
		return "none"
	case ReadFollow:
		return "follow"
	case ReadCopy:
		return "copy"
	}
	return fmt.Sprintf("Read(%d)", uint8(r))
}

// Orders is the output of a feed.
type Orders struct {
	Send []*lofamov1.UpstreamReportRequest // in this order
	Read Read
	From uint64 // ReadFollow: the revision after which; ReadCopy: the number of the first event
}

// Step processes an input. It ignores an input that does not fit the state: it is left over from an earlier one.
func (f *Feed) Step(in Input) Orders {
	var out Orders
	switch in := in.(type) {
	case Begin:
		f.becomeGreeting(in, &out)
	case Resume:
		if f.state != feedGreeting {
			break
		}
		f.sent, f.next = in.Revision, in.NextEvent
		if in.Revision == 0 {
			f.becomeCopying(&out)
		} else {
			f.becomeFollowing(&out)
		}
	case Update:
		f.update(in.UpstreamChange, &out)
	case Compacted:
		if f.state == feedFollowing {
			f.becomeCopying(&out)
		}
	case Copied:
		f.copied(in.UpstreamChange, &out)
	case Acked:
		f.acked(in.Revision, &out)
	case Beat:
		f.alive(&out)
	case Ended:
		f.becomeOff(&out)
	}
	return out
}

func (f *Feed) becomeOff(out *Orders) {
	f.state, f.open, f.bytes, f.beat = feedOff, nil, 0, 0
	out.Read = ReadNone
}

func (f *Feed) becomeGreeting(b Begin, out *Orders) {
	f.becomeOff(out)
	f.state, f.begin = feedGreeting, b.Revision
	out.Send = append(out.Send, &lofamov1.UpstreamReportRequest{Body: &lofamov1.UpstreamReportRequest_Hello{Hello: &lofamov1.UpstreamHello{
		Region: f.cfg.Region, Dims: f.cfg.Dims, Term: b.Term, Revision: b.Revision, NextEvent: b.NextEvent,
		Store: b.Store, FirstEvent: b.FirstEvent, RestoredFrom: b.From,
	}}})
}

func (f *Feed) becomeFollowing(out *Orders) {
	f.state = feedFollowing
	out.Read, out.From = ReadFollow, f.sent
}

func (f *Feed) becomePaused(out *Orders) {
	f.state = feedPaused
	out.Read = ReadNone
}

func (f *Feed) becomeCopying(out *Orders) {
	f.state = feedCopying
	out.Read, out.From = ReadCopy, f.next
}

// update passes a change on.
func (f *Feed) update(c *lofamov1.UpstreamChange, out *Orders) {
	if f.state != feedFollowing || c.GetRevision() <= f.sent {
		return
	}
	if len(c.GetEvents())+len(c.GetDocuments()) == 0 {
		f.beat = max(f.beat, c.GetRevision())
		return
	}
	f.send(c, out)
	if len(f.open) >= f.cfg.Window || f.bytes >= f.cfg.WindowBytes {
		f.becomePaused(out)
	}
}

// send splits a change into parts and tracks it.
func (f *Feed) send(c *lofamov1.UpstreamChange, out *Orders) {
	c.Previous = f.sent
	if len(c.GetEvents()) == 0 && !c.GetSnapshot() {
		c.FirstEvent = f.next
	}
	for _, p := range Parts(c) {
		out.Send = append(out.Send, &lofamov1.UpstreamReportRequest{Body: &lofamov1.UpstreamReportRequest_Change{Change: p}})
	}
	size := proto.Size(c)
	f.open = append(f.open, sentChange{c.GetRevision(), size})
	f.bytes += size
	f.sent, f.next = c.GetRevision(), c.GetFirstEvent()+uint64(len(c.GetEvents()))
}

// copied sends the whole snapshot, and then follows the later changes.
func (f *Feed) copied(c *lofamov1.UpstreamChange, out *Orders) {
	if f.state != feedCopying {
		return
	}
	c.Snapshot = true
	f.send(c, out)
	f.becomeFollowing(out)
}

// acked removes acknowledged changes from the window.
func (f *Feed) acked(rev uint64, out *Orders) {
	for len(f.open) > 0 && f.open[0].revision <= rev {
		f.bytes -= f.open[0].bytes
		f.open = f.open[1:]
	}
	if f.state == feedPaused && len(f.open) <= f.cfg.Window/2 && f.bytes <= f.cfg.WindowBytes/2 {
		f.becomeFollowing(out)
	}
}

// alive sends a beat. It names the revision up to which the parent has everything, or 0 while changes wait or the feed has not
// yet read all from before the stream: with a revision the parent would show the region as present with an old map. Only a
// change or a bookmark shows that all has been read, so a region without new changes waits for the store's next bookmark.
func (f *Feed) alive(out *Orders) {
	var rev uint64
	switch f.state {
	case feedFollowing:
		f.sent = max(f.sent, f.beat)
		if f.sent >= f.begin {
			rev = f.sent
		}
	case feedPaused, feedCopying:
	default:
		return
	}
	out.Send = append(out.Send, &lofamov1.UpstreamReportRequest{Body: &lofamov1.UpstreamReportRequest_Alive{Alive: &lofamov1.UpstreamAlive{Revision: rev}}})
}
