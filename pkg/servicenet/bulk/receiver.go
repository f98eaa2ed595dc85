package bulk

import (
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

type phase uint8

const (
	requesting phase = iota + 1
	gathering
	pulling
	ended
)

// Receiver is the supervisor's end of one transfer.
//
//	requesting ──► gathering ──► pulling ──► ended
//	   ▲   any answer    size known  │
//	   └─────────────────────────────┘ once: the half does not know the transfer any more, announces
//	                                   another object, or the checksum is wrong
//
// From every phase an error of the half, GiveUp and Cancel lead to the end. A Receiver is owned by one goroutine.
type Receiver struct {
	cfg     ReceiverConfig
	job     Job
	attempt int // index of the exchange
	phase   phase
	ways    ways
	window  window

	// Of the present attempt:
	offer  *lofamov1.BulkAnnounce // the last accepted one
	key    *Key
	digest *servicenet.Checksummer

	heard    time.Time // when the last sign of the object came
	deadline time.Time // of the expected answer; zero: none is expected
	silences int       // deadlines in a row that passed
	asked    int       // requests of this attempt
	nextPoll time.Time

	progress Progress
}

// NewReceiver begins a transfer.
func NewReceiver(now time.Time, cfg ReceiverConfig, job Job) (*Receiver, ReceiverOutput, error) {
	if err := cfg.Validate(); err != nil {
		return nil, ReceiverOutput{}, fmt.Errorf("bulk receiver: %w", err)
	}
	if err := job.Validate(); err != nil {
		return nil, ReceiverOutput{}, fmt.Errorf("bulk receiver: %w", err)
	}
	r := &Receiver{cfg: cfg, job: job}
	r.ways = newWays(&r.cfg, job.Ways)
	var out ReceiverOutput
	r.becomeRequesting(now)
	r.pump(now, &out)
	return r, out, nil
}

// Transfer returns the name of the present attempt: only its messages and chunks count.
func (r *Receiver) Transfer() Transfer { return r.job.Exchanges[r.attempt].Transfer }

// Progress returns the counters.
func (r *Receiver) Progress() Progress {
	p := r.progress
	p.Name, p.Size = r.offer.GetName(), r.offer.GetSize()
	p.Attempt, p.Way, p.Window, p.RTT = r.attempt+1, r.ways.way(), r.ways.limit(), r.ways.srtt
	p.Changes, p.Delivered = r.ways.changes, r.window.bytes()
	return p
}

// Step handles one event. After an Outcome it does nothing.
func (r *Receiver) Step(now time.Time, ev ReceiverEvent) ReceiverOutput {
	var out ReceiverOutput
	if r.phase == ended {
		return out
	}
	switch ev := ev.(type) {
	case Tick:
	case Announced:
		r.announced(now, ev, &out)
	case Arrived:
		r.arrived(now, ev, &out)
	case Consumed:
		r.window.consume(ev.Chunks)
	case Cancel:
		r.becomeEnded(Cancelled, "by the caller", &out)
	}
	r.pump(now, &out)
	return out
}

func (r *Receiver) becomeRequesting(now time.Time) {
	r.phase = requesting
	r.offer, r.key, r.digest, r.window = nil, nil, nil, window{}
	r.heard, r.deadline, r.silences, r.asked = now, time.Time{}, 0, 0
	r.ways.restart()
}

func (r *Receiver) becomeGathering(now time.Time) {
	r.phase = gathering
	r.nextPoll = now.Add(r.cfg.GatherPoll)
}

func (r *Receiver) becomePulling(now time.Time) {
	r.phase = pulling
	r.window = newWindow(r.cfg.Buffer, r.offer.GetSize(), r.offer.GetChunkSize())
	r.digest = servicenet.NewChecksummer(r.offer.GetChecksumAlgorithm())
	r.nextPoll = now.Add(r.cfg.GatherPoll)
}

// becomeEnded ends the transfer and informs the half, unless the half ended it.
func (r *Receiver) becomeEnded(result Result, why string, out *ReceiverOutput) {
	if result != Refused || r.offer.GetError() == "" {
		r.sendPull(r.ways.way(), &lofamov1.BulkPull{Done: true}, out)
	}
	r.phase = ended
	out.Outcome = &Outcome{result, why}
}

// anew restarts the transfer, once; the second time it ends the transfer.
func (r *Receiver) anew(now time.Time, last Result, why string, out *ReceiverOutput) {
	if r.attempt+1 == len(r.job.Exchanges) {
		r.becomeEnded(last, why, out)
		return
	}
	if r.offer.GetError() == "" {
		r.sendPull(r.ways.way(), &lofamov1.BulkPull{Done: true}, out)
	}
	r.attempt++
	out.Restart, out.Deliver = true, nil
	r.becomeRequesting(now)
}

// announced handles an announcement that fits the transfer.
func (r *Receiver) announced(now time.Time, ev Announced, out *ReceiverOutput) {
	m := ev.Message
	t := r.Transfer()
	if string(m.GetTransfer()) != string(t[:]) ||
		m.GetNode() != string(r.job.Origin.Node) || m.GetHalf() != lofamov1.Half(r.job.Origin.Half) {
		r.progress.Ignored++
		return
	}
	switch r.check(m) {
	case offerError:
		known := r.offer != nil
		r.offer = m
		if m.GetError() == unknownTransfer && known {
			r.anew(now, Refused, m.GetError(), out)
			return
		}
		r.becomeEnded(Refused, fault.Cut(m.GetError(), maxError), out)
		return
	case offerTooLarge:
		r.becomeEnded(Refused, fmt.Sprintf("announced with %d bytes: want at most %d", m.GetSize(), r.job.MaxSize), out)
		return
	case offerUnusable:
		r.progress.Ignored++
		return
	case offerChanged:
		r.anew(now, Refused, "another object was announced", out)
		return
	case offerOlder: // overtaken on the way
		return
	case offerGood:
	}
	if r.key == nil {
		key, err := NewKey(r.job.Exchanges[r.attempt].Private, m.GetKey(), t, r.job.Origin, r.job.Supervisor)
		if err != nil {
			r.progress.Ignored++
			return
		}
		r.key = key
	}
	r.offer = m
	if r.window.inflight == 0 {
		r.hear(now)
	}
	r.ways.answered(now, ev.Way, r.phase == requesting)
	if r.phase == requesting {
		r.becomeGathering(now)
	}
	if r.phase == gathering && (m.GetSize() > 0 || m.GetComplete()) {
		r.becomePulling(now)
	}
}

type verdict uint8

const (
	offerGood verdict = iota + 1
	offerOlder
	offerError
	offerTooLarge
	offerUnusable
	offerChanged
)

// check compares an announcement of this transfer with the limits, and with the last one.
func (r *Receiver) check(m *lofamov1.BulkAnnounce) verdict {
	if m.GetError() != "" {
		return offerError
	}
	if m.GetSize() > r.job.MaxSize {
		return offerTooLarge
	}
	if c := m.GetChunkSize(); c < 1 || c > ChunkSize || m.GetSize() > uint64(c)*MaxChunks ||
		!servicenet.KnownChecksum(m.GetChecksumAlgorithm()) {
		return offerUnusable
	}
	was := r.offer
	if was == nil {
		return offerGood
	}
	if string(was.GetKey()) != string(m.GetKey()) {
		return offerChanged
	}
	wasKnown, known := was.GetSize() > 0 || was.GetComplete(), m.GetSize() > 0 || m.GetComplete()
	switch {
	case !wasKnown:
		return offerGood
	case !known:
		return offerOlder
	case was.GetSize() != m.GetSize() || was.GetChunkSize() != m.GetChunkSize() || was.GetChecksumAlgorithm() != m.GetChecksumAlgorithm():
		return offerChanged
	case was.GetComplete() && !m.GetComplete():
		return offerOlder
	case was.GetComplete() && was.GetChecksum() != m.GetChecksum():
		return offerChanged
	}
	return offerGood
}

// hear notes a sign of life from the sender, and ends the wait.
func (r *Receiver) hear(now time.Time) {
	r.heard, r.silences, r.deadline = now, 0, time.Time{}
	if r.window.inflight > 0 {
		r.deadline = now.Add(r.timeout())
	}
}

// arrived handles a chunk.
func (r *Receiver) arrived(now time.Time, ev Arrived, out *ReceiverOutput) {
	h, err := ParseHeader(ev.Packet)
	switch {
	case err != nil:
		r.progress.Malformed++
		return
	case r.phase != pulling || h.Transfer != r.Transfer() || h.Target != r.job.Supervisor:
		r.progress.Foreign++
		return
	}
	switch r.window.place(h.Index) {
	case placeHave:
		r.progress.Duplicates++
		return
	case placeOutside:
		r.progress.Outside++
		return
	case placeFree:
	}
	_, data, err := r.key.Open(ev.Packet)
	if err != nil {
		r.progress.Forged++
		return
	}
	if len(data) != r.window.length(h.Index) {
		r.progress.Malformed++
		return
	}
	sample, lost, lastLost := r.window.put(now, h.Index, data)
	r.progress.Received++
	r.progress.Repeated += uint64(lost)
	r.ways.arrived(ev.Way, sample, lastLost, r.window.order)
	r.hear(now)
	for _, chunk := range r.window.deliver() {
		_, _ = r.digest.Write(chunk) // never fails
		out.Deliver = append(out.Deliver, chunk)
	}
}

// pump acts on expired deadlines and requests missing chunks.
func (r *Receiver) pump(now time.Time, out *ReceiverOutput) {
	if r.phase == pulling {
		r.finish(now, out)
	}
	if r.phase == ended {
		return
	}
	if now.Sub(r.heard) >= r.cfg.GiveUp {
		r.becomeEnded(Timeout, fmt.Sprintf("nothing for %v by any of %d ways", r.cfg.GiveUp, len(r.job.Ways)), out)
		return
	}
	if !r.deadline.IsZero() && !now.Before(r.deadline) {
		r.silent(now)
	}
	switch r.phase {
	case requesting:
		r.request(now, out)
	case gathering:
		r.poll(now, out)
	case pulling:
		r.pull(now, out)
		if r.window.inflight == 0 {
			r.poll(now, out)
		}
	case ended:
	}
	if r.phase != requesting {
		for _, w := range r.ways.probes(now) {
			r.sendPull(w, &lofamov1.BulkPull{}, out)
		}
	}
	out.Wake = r.wake()
}

// finish ends the transfer when everything has been delivered and the checksum is known.
func (r *Receiver) finish(now time.Time, out *ReceiverOutput) {
	switch {
	case !r.window.done() || !r.offer.GetComplete():
	case r.digest.Sum64() == r.offer.GetChecksum():
		r.becomeEnded(Complete, "", out)
	default:
		why := fmt.Sprintf("%s: given %#x, computed %#x", servicenet.ChecksumName(r.digest.Algorithm()), r.offer.GetChecksum(), r.digest.Sum64())
		r.anew(now, DataLoss, why, out)
	}
}

// silent handles a deadline that has passed: everything under way is lost, and after Silences of them in a row the
// receiver gives up the way.
func (r *Receiver) silent(now time.Time) {
	r.deadline = time.Time{}
	r.silences++
	lost := r.window.loseAll()
	r.progress.Repeated += uint64(lost)
	if lost > 0 {
		r.ways.collapse(r.window.order)
	}
	r.nextPoll = now
	if r.phase == requesting {
		r.ways.next()
	} else if r.silences%r.cfg.Silences == 0 {
		r.ways.fail(now)
	}
}

// timeout doubles when all ways have been silent in turn; before that the receiver should leave a dead way soon.
func (r *Receiver) timeout() time.Duration {
	return r.ways.timeout(r.silences / (r.cfg.Silences * len(r.job.Ways)))
}

func (r *Receiver) request(now time.Time, out *ReceiverOutput) {
	if !r.deadline.IsZero() {
		return
	}
	e, w := r.job.Exchanges[r.attempt], r.ways.way()
	out.Send = append(out.Send, Send{&lofamov1.Message{Body: &lofamov1.Message_BulkRequest{BulkRequest: &lofamov1.BulkRequest{
		Transfer: e.Transfer[:], Node: string(r.job.Origin.Node), Half: lofamov1.Half(r.job.Origin.Half),
		Object: r.job.Object, MaxSize: r.job.MaxSize, Key: e.Private.PublicKey().Bytes(),
		ReplyTo: r.job.ReplyTo, Via: w.Via,
	}}}, w})
	r.deadline = now.Add(backoff(r.cfg.RequestTimeout, r.asked/len(r.job.Ways), max(r.cfg.MaxTimeout, r.cfg.RequestTimeout)))
	r.asked++
}

// poll asks for the announcement: the checksum may be missing, or the half must hear that it is
// still wanted while the consumer is slow.
func (r *Receiver) poll(now time.Time, out *ReceiverOutput) {
	if !r.deadline.IsZero() || now.Before(r.nextPoll) {
		return
	}
	r.sendPull(r.ways.way(), &lofamov1.BulkPull{}, out)
	r.nextPoll = now.Add(r.cfg.GatherPoll)
	if r.phase == pulling && !r.window.done() {
		r.nextPoll = now.Add(r.cfg.KeepAlive)
	}
	r.deadline = now.Add(r.timeout())
}

// pull asks for missing chunks, a quarter of the window at a time, so that the next pull is under way
// before the chunks of the former have all come.
func (r *Receiver) pull(now time.Time, out *ReceiverOutput) {
	limit := r.ways.limit()
	for {
		ranges, n := r.window.ask(now, limit)
		if n == 0 {
			return
		}
		r.sendPull(r.ways.way(), &lofamov1.BulkPull{Ranges: ranges}, out)
		r.progress.Pulls++
		if r.deadline.IsZero() {
			r.deadline = now.Add(r.timeout())
		}
	}
}

func (r *Receiver) sendPull(w Way, m *lofamov1.BulkPull, out *ReceiverOutput) {
	t := r.Transfer()
	m.Transfer, m.Node, m.Half = t[:], string(r.job.Origin.Node), lofamov1.Half(r.job.Origin.Half)
	m.ReplyTo, m.Via = r.job.ReplyTo, w.Via
	out.Send = append(out.Send, Send{&lofamov1.Message{Body: &lofamov1.Message_BulkPull{BulkPull: m}}, w})
}

func (r *Receiver) wake() time.Time {
	at := fault.Earliest(r.heard.Add(r.cfg.GiveUp), r.deadline)
	if r.phase != requesting {
		at = fault.Earliest(at, r.ways.nextProbe())
		if r.deadline.IsZero() {
			at = fault.Earliest(at, r.nextPoll)
		}
	}
	return at
}
