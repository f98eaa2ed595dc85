package federation

import (
	"cmp"
	"fmt"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// feedConfig configures a feed.
type feedConfig struct {
	Region string
	Dims   string // of the whole torus
	// Window and WindowBytes bound the changes in flight to the parent, in number and in bytes. Reading stops at the
	// bound, so that a slow parent costs this side no memory. 0 stands for 512 and for 16 MiB. A snapshot may exceed
	// the bound.
	Window, WindowBytes int
}

// feed passes a region's changes on, at the region's leader.
//
//	off ──begin──► greeting ──resume──► following ◄──► paused (the window is full)
//	▲                 │                    │ the store has compacted the next change
//	│                 └──resume from 0──► copying ──copied──► following
//	└── the stream ended, from any
type feed struct {
	cfg   feedConfig
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

// newFeed returns a feed that is off.
func newFeed(cfg feedConfig) *feed {
	cfg.Window = cmp.Or(cfg.Window, 512)
	cfg.WindowBytes = cmp.Or(cfg.WindowBytes, 16<<20)
	return &feed{cfg: cfg}
}

// feedInput is something that happens to a feed.
type feedInput interface{ feedInput() }

// The inputs of a feed.
type (
	// feedBegin starts a stream. It identifies the region's own store and its position.
	feedBegin struct {
		Term, Revision, NextEvent uint64
		Store                     string
		FirstEvent                uint64 // first one unique to this store
		From                      string // the store whose snapshot it was put back to
	}
	// feedResume is the parent's answer to the hello.
	feedResume struct{ Revision, NextEvent uint64 }
	// feedUpdate is a change from the store. Without events and documents it says only that the map did not change up to
	// its revision.
	feedUpdate struct{ *lofamov1.UpstreamChange }
	// feedCompacted says that the store no longer has the next change.
	feedCompacted struct{}
	// feedCopied is all that the store has.
	feedCopied struct{ *lofamov1.UpstreamChange }
	// feedAcked says that the parent has all changes up to a revision.
	feedAcked struct{ Revision uint64 }
	// feedBeat says that it is time to send a sign of life.
	feedBeat struct{}
	// feedEnded says that the stream has ended.
	feedEnded struct{}
)

func (feedBegin) feedInput()     {}
func (feedResume) feedInput()    {}
func (feedUpdate) feedInput()    {}
func (feedCompacted) feedInput() {}
func (feedCopied) feedInput()    {}
func (feedAcked) feedInput()     {}
func (feedBeat) feedInput()      {}
func (feedEnded) feedInput()     {}

// feedRead is an order for the reader of the store.
type feedRead uint8

// Read orders. Every order except ReadOn cancels the current read.
const (
	ReadOn     feedRead = iota // go on as before
	ReadNone                   // stop reading
	ReadFollow                 // the changes after a revision
	ReadCopy                   // the whole store, and the events from a number on
)

// String returns the name.
func (r feedRead) String() string {
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

// feedOrders is the output of a feed.
type feedOrders struct {
	Send []*lofamov1.UpstreamReportRequest // in this order
	Read feedRead
	From uint64 // ReadFollow: the revision after which; ReadCopy: the number of the first event
}

// Step processes an input. It ignores an input that does not fit the state: it is left over from an earlier one.
func (f *feed) Step(in feedInput) feedOrders {
	var out feedOrders
	switch in := in.(type) {
	case feedBegin:
		f.becomeGreeting(in, &out)
	case feedResume:
		if f.state != feedGreeting {
			break
		}
		f.sent, f.next = in.Revision, in.NextEvent
		if in.Revision == 0 {
			f.becomeCopying(&out)
		} else {
			f.becomeFollowing(&out)
		}
	case feedUpdate:
		f.update(in.UpstreamChange, &out)
	case feedCompacted:
		if f.state == feedFollowing {
			f.becomeCopying(&out)
		}
	case feedCopied:
		f.copied(in.UpstreamChange, &out)
	case feedAcked:
		f.acked(in.Revision, &out)
	case feedBeat:
		f.alive(&out)
	case feedEnded:
		f.becomeOff(&out)
	}
	return out
}

func (f *feed) becomeOff(out *feedOrders) {
	f.state, f.open, f.bytes, f.beat = feedOff, nil, 0, 0
	out.Read = ReadNone
}

func (f *feed) becomeGreeting(b feedBegin, out *feedOrders) {
	f.becomeOff(out)
	f.state, f.begin = feedGreeting, b.Revision
	out.Send = append(out.Send, &lofamov1.UpstreamReportRequest{Body: &lofamov1.UpstreamReportRequest_Hello{Hello: &lofamov1.UpstreamHello{
		Region: f.cfg.Region, Dims: f.cfg.Dims, Term: b.Term, Revision: b.Revision, NextEvent: b.NextEvent,
		Store: b.Store, FirstEvent: b.FirstEvent, RestoredFrom: b.From,
	}}})
}

func (f *feed) becomeFollowing(out *feedOrders) {
	f.state = feedFollowing
	out.Read, out.From = ReadFollow, f.sent
}

func (f *feed) becomePaused(out *feedOrders) {
	f.state = feedPaused
	out.Read = ReadNone
}

func (f *feed) becomeCopying(out *feedOrders) {
	f.state = feedCopying
	out.Read, out.From = ReadCopy, f.next
}

// update passes a change on.
func (f *feed) update(c *lofamov1.UpstreamChange, out *feedOrders) {
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
func (f *feed) send(c *lofamov1.UpstreamChange, out *feedOrders) {
	c.Previous = f.sent
	if len(c.GetEvents()) == 0 && !c.GetSnapshot() {
		c.FirstEvent = f.next
	}
	for _, p := range splitChange(c) {
		out.Send = append(out.Send, &lofamov1.UpstreamReportRequest{Body: &lofamov1.UpstreamReportRequest_Change{Change: p}})
	}
	size := proto.Size(c)
	f.open = append(f.open, sentChange{c.GetRevision(), size})
	f.bytes += size
	f.sent, f.next = c.GetRevision(), c.GetFirstEvent()+uint64(len(c.GetEvents()))
}

// copied sends the whole snapshot, and then follows the later changes.
func (f *feed) copied(c *lofamov1.UpstreamChange, out *feedOrders) {
	if f.state != feedCopying {
		return
	}
	c.Snapshot = true
	f.send(c, out)
	f.becomeFollowing(out)
}

// acked removes acknowledged changes from the window.
func (f *feed) acked(rev uint64, out *feedOrders) {
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
func (f *feed) alive(out *feedOrders) {
	var rev uint64
	switch f.state {
	case feedFollowing:
		if at := max(f.sent, f.beat); at >= f.begin { // else the parent does not receive it
			f.sent, rev = at, at
		}
	case feedPaused, feedCopying:
	default:
		return
	}
	out.Send = append(out.Send,
		&lofamov1.UpstreamReportRequest{Body: &lofamov1.UpstreamReportRequest_Alive{Alive: &lofamov1.UpstreamAlive{Revision: rev}}})
}
