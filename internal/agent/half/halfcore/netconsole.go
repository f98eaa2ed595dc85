package halfcore

import (
	"bytes"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Bounds of a sender's lines. A panic is of some 40 lines within 10 ms.
const (
	netconsoleLine  = 1024 // bytes of an unfinished line; the rest of a longer one is left out
	netconsoleBurst = 400  // lines at once
	netconsoleRate  = 50   // lines a second after that
	netconsoleAge   = 10 * time.Second
	// netconsoleAgain is the time after an error during which a sender's next error counts only if it is graver, or from another boot.
	netconsoleAgain = time.Minute
	// netconsoleBoot is shorter than the time that any machine needs from an error to the first error of its next boot.
	netconsoleBoot = 5 * time.Second
	// maxUptime bounds the time stamps that count.
	maxUptime = 100 * 365 * 24 * time.Hour
)

// Lines of context before and behind an error.
const (
	wordsBefore = 1
	wordsBehind = servicenet.MaxWordsContext - wordsBefore
)

// NetconsoleCounts count the lines and packets of a receiver.
type NetconsoleCounts struct {
	Lines     uint64 // taken
	Strangers uint64 // packets from other addresses
	Flooded   uint64 // lines above a sender's rate; a datagram refused without an end of line counts as one
	Cut       uint64 // lines cut because they were too long
	Malformed uint64 // packets without text, or fragments without their beginning
}

// Netconsole assembles the lines that the kernels of known machines send by netconsole, and finds those in which they die. Anybody who
// can forge an address can write such lines: they are text for people. It does no I/O; one goroutine uses it.
type Netconsole struct {
	senders map[netip.Addr]*netconsoleSender
	counts  NetconsoleCounts
	serial  uint32
}

// netconsoleSender is the state of one machine's lines.
type netconsoleSender struct {
	node fault.NodeID
	// part is an unfinished line; skip: its rest is left out.
	part   []byte
	partAt time.Time
	skip   bool
	// room is the number of lines that it may send now.
	room   float64
	roomAt time.Time
	before []string // the newest lines, at most wordsBefore
	lastAt time.Time
	death  KernelDeath // zero: none
	at     time.Time   // of death
	booted time.Time   // when the kernel of death booted, computed from the time stamp of the line; zero: the line had none
	words  *lofamov1.LastWords
	behind int // lines of context that are still missing
}

// NewNetconsole returns a receiver for the machines of nodes at given addresses. serial is the number before that of its first
// error; take a random one, so that a restart repeats no number.
func NewNetconsole(senders map[netip.Addr]fault.NodeID, serial uint32) *Netconsole {
	n := &Netconsole{serial: serial}
	n.SetSenders(senders)
	return n
}

// SetSenders replaces the known machines. Those that stay keep their unfinished lines and their last words.
func (n *Netconsole) SetSenders(senders map[netip.Addr]fault.NodeID) {
	was := n.senders
	n.senders = make(map[netip.Addr]*netconsoleSender, len(senders))
	for a, node := range senders {
		a = a.Unmap().WithZone("")
		s := was[a]
		if s == nil || s.node != node {
			s = &netconsoleSender{node: node, room: netconsoleBurst}
		}
		n.senders[a] = s
	}
}

// Counts returns the counters.
func (n *Netconsole) Counts() NetconsoleCounts { return n.counts }

// Packet takes a datagram in the plain or the extended format. It reports whether there are new last words.
func (n *Netconsole) Packet(now time.Time, from netip.Addr, b []byte) bool {
	from = from.Unmap().WithZone("")
	s := n.senders[from]
	if s == nil {
		n.counts.Strangers++
		return false
	}
	found := false
	if len(s.part) > 0 && now.Sub(s.partAt) > time.Second {
		found = n.line(s, now, from, n.flush(s)) // its end was lost
	}
	if now.Sub(s.lastAt) > netconsoleAge {
		s.before = nil
	}
	s.lastAt = now
	s.room = min(netconsoleBurst, s.room+now.Sub(s.roomAt).Seconds()*netconsoleRate)
	s.roomAt = now
	for _, line := range n.lines(s, now, b) {
		s.room--
		n.counts.Lines++
		found = n.line(s, now, from, line) || found
	}
	return found
}

// lines returns the complete lines that a datagram ends, as far as the sender's rate allows. It does not parse the rest, so that a flood
// does not cost the half more than that rate.
func (n *Netconsole) lines(s *netconsoleSender, now time.Time, b []byte) (out []string) {
	room := int(s.room)
	if room < 1 {
		n.refuse(s, b)
		return nil
	}
	if stamp, text, offset, total, ok := extended(b); ok {
		switch {
		case total == 0:
			s.part, s.skip = nil, false
			return []string{stamp + text}
		case offset == 0:
			s.part, s.skip = append([]byte(stamp), cutBytes(text)...), false
		case len(s.part) == 0:
			n.counts.Malformed++
			return nil
		default:
			n.more(s, []byte(text))
		}
		if s.partAt = now; offset+len(text) >= total {
			out = append(out, n.flush(s))
		}
		return out
	}
	if len(bytes.TrimSpace(b)) == 0 && len(s.part) == 0 {
		n.counts.Malformed++
		return nil
	}
	for len(b) > 0 {
		if len(out) == room {
			n.refuse(s, b)
			break
		}
		text, rest, ends := bytes.Cut(b, []byte("\n"))
		n.more(s, text)
		if b, s.partAt = rest, now; ends {
			if line := n.flush(s); line != "" {
				out = append(out, line)
			}
		}
	}
	return out
}

// refuse leaves out the rest of a datagram, as if it were lost on its way.
func (n *Netconsole) refuse(s *netconsoleSender, b []byte) {
	n.counts.Flooded += uint64(max(1, bytes.Count(b, []byte("\n"))))
	s.part, s.skip = s.part[:0], false
}

func cutBytes(text string) string { return text[:min(len(text), netconsoleLine)] }

// more adds to the unfinished line.
func (n *Netconsole) more(s *netconsoleSender, text []byte) {
	room := max(0, netconsoleLine-len(s.part))
	if len(text) > room {
		if text = text[:room]; !s.skip {
			s.skip = true
			n.counts.Cut++
		}
	}
	s.part = append(s.part, text...)
}

// flush ends the unfinished line and returns it.
func (n *Netconsole) flush(s *netconsoleSender) string {
	line := string(s.part)
	s.part, s.skip = s.part[:0], false
	return line
}

// extended reads a datagram of the extended format: "[release,]level,number,microseconds,flags[,ncfrag=offset/total];text", and behind
// it lines of a dictionary. stamp is the time as the plain format writes it.
func extended(b []byte) (stamp, text string, offset, total int, ok bool) {
	head, rest, found := strings.Cut(string(b), ";")
	fields := strings.Split(head, ",")
	if !found || len(head) > 256 || len(fields) < 4 {
		return "", "", 0, 0, false
	}
	if _, err := strconv.ParseUint(fields[0], 10, 32); err != nil {
		fields = fields[1:] // the kernel's release
	}
	if len(fields) < 4 {
		return "", "", 0, 0, false
	}
	var numbers [3]uint64
	for i := range numbers {
		n, err := strconv.ParseUint(fields[i], 10, 63)
		if err != nil {
			return "", "", 0, 0, false
		}
		numbers[i] = n
	}
	for _, f := range fields[4:] {
		if v, is := strings.CutPrefix(f, "ncfrag="); is {
			at, of, _ := strings.Cut(v, "/")
			a, err := strconv.ParseUint(at, 10, 16)
			t, err2 := strconv.ParseUint(of, 10, 16)
			if err != nil || err2 != nil || a >= t {
				return "", "", 0, 0, false
			}
			offset, total = int(a), int(t)
		}
	}
	us := numbers[2]
	stamp = "[" + strconv.FormatUint(us/1e6, 10) + "." + strconv.FormatUint(1e6+us%1e6, 10)[1:] + "] "
	if total == 0 {
		rest, _, _ = strings.Cut(rest, "\n")
		rest = cutBytes(rest)
	}
	return stamp, rest, offset, total, true
}

// line takes one line, and reports whether it changes the last words.
func (n *Netconsole) line(s *netconsoleSender, now time.Time, from netip.Addr, line string) bool {
	death, ok := ReadKernelLog([]byte(line))
	var booted time.Time
	if ok {
		booted = bootOf(now, line)
	}
	rebooted := death.Key != s.death.Key && !booted.IsZero() && !s.booted.IsZero() && booted.Sub(s.booted) >= netconsoleBoot
	if age := now.Sub(s.at); s.words != nil && (age >= netconsoleAgain || age >= netconsoleBoot && rebooted) {
		s.words, s.death, s.behind = nil, KernelDeath{}, 0
	}
	if ok && death.graver(s.death) {
		n.serial++
		if n.serial == 0 {
			n.serial++
		}
		s.death, s.at, s.booted, s.behind = death, now, booted, wordsBehind
		s.words = &lofamov1.LastWords{Node: string(s.node), From: from.String(), End: lofamov1.BootEnd(death.End), Line: death.Line,
			Context: s.before, Serial: n.serial}
		s.before = nil
		return true
	}
	text := CleanText(strings.TrimSpace(string(withoutTime(withoutLevel([]byte(line))))))
	if text == "" {
		return false
	}
	if s.behind > 0 {
		s.behind--
		s.words.Context = append(s.words.Context, text)
		return false
	}
	s.before = append(s.before, text)
	s.before = s.before[max(0, len(s.before)-wordsBefore):]
	return false
}

// bootOf computes when a machine booted, from the time stamp of a line that arrives now; zero: the line has no time stamp.
func bootOf(now time.Time, line string) time.Time {
	stamp, _, found := strings.Cut(strings.TrimPrefix(string(withoutLevel([]byte(line))), "["), "]")
	uptime, err := strconv.ParseFloat(strings.TrimSpace(stamp), 64)
	if !found || err != nil || !(uptime >= 0 && uptime < maxUptime.Seconds()) {
		return time.Time{}
	}
	return now.Add(-time.Duration(uptime * float64(time.Second)))
}

// Words returns copies of the newest last words with their ages, the newest first, at most servicenet.MaxLastWords. It omits those that are
// too old for a digest, because their machines may have booted since.
func (n *Netconsole) Words(now time.Time) (out []*lofamov1.LastWords) {
	var newest [servicenet.MaxLastWords]*netconsoleSender
	for _, s := range n.senders {
		for i := range newest {
			if s != nil && s.words != nil && (newest[i] == nil || s.words.GetSerial()-newest[i].words.GetSerial() < 1<<31) {
				newest[i], s = s, newest[i]
			}
		}
	}
	for _, s := range newest {
		if s == nil {
			continue
		}
		if age := max(0, now.Sub(s.at)); age < wordsFor {
			w := proto.CloneOf(s.words)
			w.AgeMs = uint32(age.Milliseconds())
			out = append(out, w)
		}
	}
	return out
}
