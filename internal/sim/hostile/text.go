package hostile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A text sequence has one line for each property of its world and one for each action: the time, the verb, the half,
// and then the verb's key=value fields. Lines that begin with # are comments.
//
//	torus 2x2x2
//	liars 0,0,0
//	steps kubernetes.cordon
//	250ms claim 0,0,0/host about=0,0,0 component=link/X+ state=FAILED kind=SELF

// String returns the sequence in the form that Parse reads.
func (s *Sequence) String() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	at := func(rank int) string { return s.Dims.At(rank).String() }
	line("torus %s", s.Dims)
	if s.Racks {
		line("racks")
	}
	var liars []string
	for _, l := range s.Liars {
		liars = append(liars, at(l))
	}
	line("liars %s", strings.Join(liars, " "))
	if s.Dead >= 0 {
		line("dead %s", at(s.Dead))
	}
	if s.Refuses {
		line("refuses")
	}
	line("loss %d", s.Loss)
	line("seed %d", s.Seed)
	var kinds []string
	for _, k := range s.Kinds {
		kinds = append(kinds, string(k))
	}
	line("steps %s", strings.Join(kinds, " "))
	if s.Shipped {
		line("shipped")
	}
	for _, a := range s.Actions {
		fmt.Fprintf(&b, "%s %s %s/%s", a.At, a.Do, at(a.Node), a.Half)
		for _, f := range fields {
			if slices.Contains(needs[a.Do], f.key) || slices.Contains(mays[a.Do], f.key) && a.Ended {
				fmt.Fprintf(&b, " %s=%s", f.key, f.get(s, &a))
			}
		}
		line("")
	}
	return b.String()
}

// needs lists the fields of each verb, besides time and half.
var needs = map[Verb][]string{
	Say: {"about", "component", "state", "kind", "age", "digest"}, Claim: {"about", "component", "state", "kind", "age", "digest"},
	Replay: {"index", "path", "held"}, Answer: {"index"}, Usurp: {"index"}, Mode: {"direction", "link"}, Mute: {"held"}, Hush: {"held"},
	Boot: {"index"}, Gossip: {"about"}, Trend: {"component"}, Lose: {"about", "held"}, Withdraw: nil, Speak: nil, Lead: nil,
	Announce: {"of", "held", "digest"}, Plan: {"about", "held"}, Refuse: {"about", "index", "held"},
}

// mays lists the fields of each verb that may be missing.
var mays = map[Verb][]string{Say: {"ended"}, Claim: {"ended"}}

// field is one field of an action in text.
type field struct {
	key string
	get func(*Sequence, *Action) string
	set func(*Sequence, *Action, string) error
}

var fields = []field{
	{"about", func(s *Sequence, a *Action) string { return s.Dims.At(a.About).String() }, func(s *Sequence, a *Action, v string) (err error) {
		a.About, err = rankOf(s, v)
		return err
	}},
	{"of", func(_ *Sequence, a *Action) string { return a.Of.String() }, func(_ *Sequence, a *Action, v string) (err error) {
		a.Of, err = fault.ParseHalf(v)
		return err
	}},
	{"component", func(_ *Sequence, a *Action) string { return a.Component.String() }, func(_ *Sequence, a *Action, v string) (err error) {
		a.Component, err = fault.ParseComponent(v)
		return err
	}},
	{"state", func(_ *Sequence, a *Action) string { return a.State.String() }, func(_ *Sequence, a *Action, v string) (err error) {
		a.State, err = fault.ParseState(v)
		return err
	}},
	{"kind", func(_ *Sequence, a *Action) string { return a.Kind.String() }, func(_ *Sequence, a *Action, v string) (err error) {
		a.Kind, err = fault.ParseKind(v)
		return err
	}},
	{"age", func(_ *Sequence, a *Action) string { return a.Age.String() }, func(_ *Sequence, a *Action, v string) (err error) {
		a.Age, err = time.ParseDuration(v)
		return err
	}},
	{"digest", func(_ *Sequence, a *Action) string { return strconv.FormatBool(a.Digest) },
		func(_ *Sequence, a *Action, v string) (err error) {
			a.Digest, err = strconv.ParseBool(v)
			return err
		}},
	{"ended", func(_ *Sequence, a *Action) string { return strconv.FormatBool(a.Ended) },
		func(_ *Sequence, a *Action, v string) (err error) {
			a.Ended, err = strconv.ParseBool(v)
			return err
		}},
	{"direction", func(_ *Sequence, a *Action) string { return a.Direction.String() }, func(_ *Sequence, a *Action, v string) (err error) {
		a.Direction, err = grid.ParseDirection(v)
		return err
	}},
	{"link", func(_ *Sequence, a *Action) string { return a.Link.String() }, func(_ *Sequence, a *Action, v string) error {
		i := slices.Index(linkModeNames[1:], v)
		if i < 0 {
			return fmt.Errorf("link %q: want one of %v", v, linkModeNames[1:])
		}
		a.Link = LinkMode(i + 1)
		return nil
	}},
	{"path", func(_ *Sequence, a *Action) string { return a.Path.String() }, func(_ *Sequence, a *Action, v string) (err error) {
		a.Path, err = fault.ParsePath(v)
		return err
	}},
	{"held", func(_ *Sequence, a *Action) string { return a.Held.String() }, func(_ *Sequence, a *Action, v string) (err error) {
		a.Held, err = time.ParseDuration(v)
		return err
	}},
	{"index", func(_ *Sequence, a *Action) string { return strconv.Itoa(a.Index) }, func(_ *Sequence, a *Action, v string) (err error) {
		if a.Index, err = strconv.Atoi(v); err == nil && a.Index < 0 {
			err = fmt.Errorf("index: given %d: want 0 or more", a.Index)
		}
		return err
	}},
}

func rankOf(s *Sequence, v string) (int, error) {
	c, err := grid.ParseCoord(v)
	if err != nil {
		return 0, err
	}
	if err := s.Dims.Check(c); err != nil {
		return 0, err
	}
	return s.Dims.Rank(c), nil
}

// Parse reads a sequence in String's form. Errors name the line.
func Parse(r io.Reader) (Sequence, error) {
	s := Sequence{Dead: -1}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if err := s.line(words); err != nil {
			return Sequence{}, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return Sequence{}, err
	}
	return s, s.check()
}

// line parses one line.
func (s *Sequence) line(words []string) (err error) {
	one := func() string { return strings.Join(words[1:], " ") }
	switch words[0] {
	case "torus":
		s.Dims, err = grid.ParseDims(one())
	case "racks":
		s.Racks = true
	case "shipped":
		s.Shipped = true
	case "refuses":
		s.Refuses = true
	case "liars":
		for _, w := range words[1:] {
			rank, err := rankOf(s, w)
			if err != nil {
				return err
			}
			s.Liars = append(s.Liars, rank)
		}
	case "dead":
		s.Dead, err = rankOf(s, one())
	case "loss":
		if s.Loss, err = strconv.Atoi(one()); err == nil && (s.Loss < 0 || s.Loss > 100) {
			err = fmt.Errorf("loss: given %d: want 0 to 100", s.Loss)
		}
	case "seed":
		s.Seed, err = strconv.ParseUint(one(), 10, 64)
	case "steps":
		for _, w := range words[1:] {
			s.Kinds = append(s.Kinds, response.Kind(w))
		}
	default:
		err = s.action(words)
	}
	return err
}

// action parses the line of one action.
func (s *Sequence) action(words []string) error {
	if len(words) < 3 {
		return fmt.Errorf("%q: want a property, or a time, a verb and a half", strings.Join(words, " "))
	}
	var a Action
	var err error
	if a.At, err = time.ParseDuration(words[0]); err != nil {
		return err
	}
	i := slices.Index(verbNames[1:], words[1])
	if i < 0 {
		return fmt.Errorf("verb %q: want one of %v", words[1], verbNames[1:])
	}
	a.Do = Verb(i + 1)
	who, half, ok := strings.Cut(words[2], "/")
	if !ok {
		return errors.New("want a coordinate and a half, as in 0,0,1/host")
	}
	if a.Node, err = rankOf(s, who); err != nil {
		return err
	}
	if a.Half, err = fault.ParseHalf(half); err != nil {
		return err
	}
	a.About = a.Node
	missing := slices.Clone(needs[a.Do])
	for _, w := range words[3:] {
		key, value, _ := strings.Cut(w, "=")
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
		if i < 0 || !slices.Contains(needs[a.Do], key) && !slices.Contains(mays[a.Do], key) {
			return fmt.Errorf("%s: given %q: want %v", a.Do, w, needs[a.Do])
		}
		if err := fields[i].set(s, &a, value); err != nil {
			return err
		}
		missing = slices.DeleteFunc(missing, func(m string) bool { return m == key })
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s: want %v besides", a.Do, missing)
	}
	s.Actions = append(s.Actions, a)
	return nil
}
