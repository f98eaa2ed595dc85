package receiver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// operation is the stored state of a do and of its undo.
type operation struct {
	Action  string `json:"action"`  // of the newest attempt: do or undo
	Attempt int    `json:"attempt"` // the newest
	Outcome string `json:"outcome"` // of the newest attempt; accepted: it is running
	// Effect is the present effect: nothing (empty), done, partly, or unknown.
	Effect string `json:"effect"`
	Detail string `json:"detail,omitempty"`
}

// status returns the answer about the do or the undo of a message.
func (o operation) status(m *Message) Reply {
	action := "do"
	if m.Undoes != "" {
		action = "undo"
	}
	switch {
	case o.Action == action && o.Outcome == accepted:
		return Reply{Outcome: accepted, Attempt: o.Attempt, RetryAfter: 1}
	case o.Action == action:
		return Reply{Outcome: o.Outcome, Attempt: o.Attempt, Detail: o.Detail}
	case action == "do" && o.Effect != "": // an undo has failed
		return Reply{Outcome: o.Effect, Attempt: o.Attempt, Detail: o.Detail}
	default:
		return Reply{Outcome: none, Attempt: o.Attempt}
	}
}

// store is the receiver's state, in one JSON file.
type store struct {
	file string
	// Tokens by cluster, the highest seen. They are kept for ever.
	Tokens map[string]uint64 `json:"tokens"`
	// Operations by key. Those with an effect are kept for ever, so that they can be undone; others may be dropped
	// after a month.
	Operations map[string]operation `json:"operations"`
}

// open reads the file. Actions that were running when their writer died may have happened.
func open(file string) (*store, error) {
	s := &store{file: file, Tokens: map[string]uint64{}, Operations: map[string]operation{}}
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, s.write()
	}
	if err == nil {
		err = json.Unmarshal(b, s)
	}
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", file, err)
	}
	for key, o := range s.Operations {
		if o.Outcome == accepted {
			o.Outcome, o.Effect, o.Detail = Unknown, Unknown, "the receiver died while it was under way"
			s.Operations[key] = o
		}
	}
	return s, s.write()
}

// put records an operation, on disk before it takes effect.
func (s *store) put(key string, o operation) error {
	was, known := s.Operations[key]
	s.Operations[key] = o
	err := s.write()
	if err != nil {
		delete(s.Operations, key)
		if known {
			s.Operations[key] = was
		}
	}
	return err
}

// write replaces the file by a complete new one.
func (s *store) write() error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(s.file), ".store-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), s.file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(filepath.Dir(s.file))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
