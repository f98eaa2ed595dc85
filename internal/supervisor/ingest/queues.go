package ingest

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// answerQueue limits the answers that wait for a worker. One challenge has two answers on each rail.
const answerQueue = 1024

// answerWeight is the number of answers handled in a row while other messages wait.
const answerWeight = 8

// enqueue gives a message to the workers. The caller handles a datagram under a MAC itself while no other one waits: such a
// message, which is mostly a digest, costs less than the wake-up of a worker.
func (in *Intake) enqueue(p packet) {
	if nonce := claimedNonce(p.data); nonce != nil && in.cfg.Sender.asked.awaited(nonce) {
		select {
		case in.answers <- p:
		default:
			in.drop("answers", true)
		}
		return
	}
	known := true
	if p.from.IsValid() {
		var ok bool
		if known, ok = in.sources.admit(p.arrived, p.from); !ok {
			if known {
				in.drop("sources", true)
			} else {
				in.drop("strangers", false)
			}
			return
		}
		if len(in.queue) == 0 && claimsMAC(p.data) {
			in.handle(p)
			return
		}
	}
	select {
	case in.queue <- p:
	default:
		in.drop("datagrams", known)
		if known {
			in.Full()
		}
	}
}

// drop counts a message that found no room.
func (in *Intake) drop(queue string, known bool) {
	in.cfg.Metrics.Dropped.WithLabelValues(queue).Inc()
	if known {
		now := int64(time.Since(in.begun)) + 1
		if was := in.lost.Swap(now); was == 0 || now-was >= int64(lostTime) {
			in.cfg.Metrics.Holds.Inc()
		}
	}
}

// Full records that messages of any known sources may have been lost here, because the queue or a socket's buffer is full. Drops
// of a source that exceeds its own budget do not count, because it could then keep silent nodes from becoming UNKNOWN.
func (in *Intake) Full() {
	if in.cfg.Lost != nil {
		in.cfg.Lost()
	}
}

// shownTime is the time after the last drop during which the map shows that verdicts are held.
const shownTime = 5 * time.Second

// Holding returns why verdicts wait, or did within the last 5 s; "" if they did not.
func (in *Intake) Holding() string {
	at := in.lost.Load()
	if at == 0 {
		return ""
	}
	ago := time.Since(in.begun) - time.Duration(at)
	if ago >= shownTime {
		return ""
	}
	return fmt.Sprintf("the leader drops messages of nodes or replicas (the last %s ago): each verdict waits, for at most one digest period; "+
		"if this lasts for minutes, see docs/runbooks/LofamoReportLoss.md",
		ago.Round(100*time.Millisecond))
}

// lostTime is the delay of verdicts after a known source's message was dropped. It lets the sender repeat the
// message, possibly by another rail. Continued drops delay a verdict by one digest period at most
// (awareness.Machine.Behind).
const lostTime = 100 * time.Millisecond

// Behind returns the intake's delay: longer than any verdict waits while known sources' messages are being dropped, else 0.
func (in *Intake) Behind() time.Duration {
	if at := in.lost.Load(); at != 0 && time.Since(in.begun)-time.Duration(at) < lostTime {
		return time.Minute
	}
	return 0
}

// Sources returns the addresses at which halves have recently proved sessions.
func (in *Intake) Sources() []netip.AddrPort { return in.sources.list() }

// SourcesVersion returns a number that changes with the result of Sources. It is never 0.
func (in *Intake) SourcesVersion() uint64 { return in.sources.listVersion() }

// Keep forgets the paths, sessions, digests and budgets of nodes that have left the topology.
func (in *Intake) Keep() {
	in.cfg.Sender.cfg.Paths.Keep(in.gives)
	in.restater.keep(in.gives)
	in.sources.keep(in.gives)
}

// Run processes the queues until the context ends.
func (in *Intake) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { in.restater.run(ctx) })
	for range in.cfg.Workers {
		wg.Go(func() {
			for row := 0; ; row++ { // answers in a row
				if row < answerWeight {
					select {
					case p := <-in.answers:
						in.cfg.Metrics.Depth.WithLabelValues("answers").Set(float64(len(in.answers)))
						in.handle(p)
						continue
					default:
					}
				}
				row = -1
				select {
				case p := <-in.queue:
					in.cfg.Metrics.Depth.WithLabelValues("datagrams").Set(float64(len(in.queue)))
					in.handle(p)
					continue
				default:
				}
				select {
				case <-ctx.Done():
					return
				case p := <-in.answers:
					in.handle(p)
				case p := <-in.queue:
					in.cfg.Metrics.Depth.WithLabelValues("datagrams").Set(float64(len(in.queue)))
					in.handle(p)
				}
			}
		})
	}
	wg.Wait()
}
