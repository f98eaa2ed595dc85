package local

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// WriteTable writes a status for people. Each problem is in plain words on a line of its own.
func WriteTable(out io.Writer, s Status) error {
	var b strings.Builder
	d := s.Delivery.DeliveryStatus
	fmt.Fprintf(&b, "node %s at %s, platform %s\n", s.Node, s.Coord, s.Platform)
	if ns := d.GetIsolatedNs(); ns > 0 {
		fmt.Fprintf(&b, "CANNOT REACH ANYBODY: no supervisor has answered by any rail for %s; %s\n", roundNs(ns), waitingText(d))
	}
	fmt.Fprintf(&b, "service network %s, path %s", s.ServiceNetwork, pathState(d.GetState()))
	if d.GetPrimary() != "" {
		fmt.Fprintf(&b, ", primary %s", d.GetPrimary())
	}
	if d.GetAlternate() != "" {
		fmt.Fprintf(&b, ", alternate %s", d.GetAlternate())
	}
	b.WriteString("\n\n")
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "HALF\tSTATE\tEPOCH") // a Builder never fails
	for _, h := range []struct {
		name string
		half HalfStatus
	}{{"host", s.Host}, {"dnp", s.DNP}} {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\n", h.name, h.half.State, orDash(h.half.Epoch))
	}
	_ = t.Flush()
	b.WriteString("\n")
	writeHealth(&b, s)
	writeRails(&b, d.GetRails())
	fmt.Fprintf(&b, "\nlog: %s", loggedText(d))
	fmt.Fprintf(&b, "\n     %s, %s%s, %d left out because the log was full\n", fault.Plural(d.GetRetries(), "retry"),
		fault.Plural(d.GetMigrations(), "migration"), reasonCounts(s.Migrations), d.GetShortened())
	fmt.Fprintf(&b, "spool: %s\n", s.Spool)
	fmt.Fprintf(&b, "copy: %s\n", s.Copy)
	writeBroadcasts(&b, s.Broadcasts)
	writeProcedures(&b, s.Procedures)
	writeTorus(&b, s.Torus)
	if m := s.Master; m != nil && m.CutOff {
		fmt.Fprintf(&b, "THIS PART OF THE TORUS IS CUT OFF: no node of it reaches the supervisors; its master is %s\n", m.Node)
	} else if m != nil {
		fmt.Fprintf(&b, "master of this part of the torus: %s, which reaches the supervisors\n", m.Node)
	}
	if s.Damaged > 0 || s.Refused > 0 {
		fmt.Fprintf(&b, "received: %d packets damaged, %d messages refused\n", s.Damaged, s.Refused)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func writeRails(b *strings.Builder, rails []*lofamov1.RailStatus) {
	t := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "RAIL\tSTATE\tIN FLIGHT\tRTT\tSENT\tANSWERED")
	for _, r := range rails {
		state, rtt := "up", "-"
		if r.GetDown() {
			state = "down"
		}
		if r.GetRttNs() > 0 {
			rtt = roundNs(r.GetRttNs()).String()
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%d\t%d\n", r.GetName(), state, r.GetInFlight(), rtt, r.GetSent(), r.GetAnswered())
	}
	_ = t.Flush()
}

// writeBroadcasts writes a line for each topic with a count.
func writeBroadcasts(b *strings.Builder, by map[string]BroadcastStatus) {
	for _, topic := range slices.Sorted(maps.Keys(by)) {
		if c := by[topic]; c != (BroadcastStatus{}) {
			fmt.Fprintf(b, "broadcasts, %s: %d raised here, %d delivered, %d repeated, %d dropped\n", topic, c.Raised, c.Delivered,
				c.Repeated, c.Dropped)
		}
	}
}

// writeProcedures writes a line where there was any.
func writeProcedures(b *strings.Builder, p *ProcedureStatus) {
	if p == nil || *p == (ProcedureStatus{State: p.State}) {
		return
	}
	fmt.Fprintf(b, "procedures: %s, %d the last; %d with the torus empty, %d without, %d not begun; %d messages held up, %d wait\n",
		p.State, p.Wave, p.Clear, p.NotClear, p.Refused, p.HeldUp, p.Waiting)
}

// writeTorus writes a line with the counters that are not 0.
func writeTorus(b *strings.Builder, counters map[string]uint64) {
	var some []string
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		if n := counters[name]; n > 0 {
			some = append(some, fmt.Sprintf("%s %d", strings.ReplaceAll(name, "_", " "), n))
		}
	}
	if len(some) > 0 {
		fmt.Fprintf(b, "torus: %s\n", strings.Join(some, ", "))
	}
}

// String describes the spool in a line.
func (s SpoolStatus) String() string {
	switch {
	case s.Path == "":
		return "none: undelivered reports are lost when the half ends"
	case s.Error != "":
		return fmt.Sprintf("%s FAILS, reports are kept in memory only: %s", s.Path, s.Error)
	}
	out := fmt.Sprintf("%s, %s, %d of %d bytes", s.Path, fault.Plural(s.Records, "report"), s.Used, s.Capacity)
	if s.Lost > 0 {
		out += fmt.Sprintf(", %d not kept", s.Lost)
	}
	return out
}

func loggedText(d *lofamov1.DeliveryStatus) string {
	if d.GetLogged() == 0 {
		return "empty: everything has been committed"
	}
	return fmt.Sprintf("%s, %d not yet received, the oldest %s old", fault.Plural(uint64(d.GetLogged()), "report"), d.GetUnanswered(),
		roundNs(d.GetOldestNs()))
}

// reasonCounts lists the reasons of the migrations.
func reasonCounts(by map[string]uint64) string {
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%s %d", why, by[why]))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func waitingText(d *lofamov1.DeliveryStatus) string {
	if d.GetLogged() == 0 {
		return "no report waits"
	}
	verb := "wait"
	if d.GetLogged() == 1 {
		verb = "waits"
	}
	return fmt.Sprintf("%s %s", fault.Plural(uint64(d.GetLogged()), "report"), verb)
}

func pathState(s lofamov1.PathState) string {
	if s == lofamov1.PathState_PATH_STATE_UNSPECIFIED {
		return "none yet"
	}
	return s.String()
}

func orDash(n uint64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// roundNs makes a time of nanoseconds short enough to be read.
func roundNs(ns uint64) time.Duration {
	d := time.Duration(min(ns, 1<<62))
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}
