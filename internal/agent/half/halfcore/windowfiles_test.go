package halfcore

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// filePair is both ends of an exchange, joined without a window.
type filePair struct {
	t    *testing.T
	ends [2]*FileExchange // host, DNP
	now  time.Time
	drop func(i int) bool // loses message i
	sent int
}

func newFilePair(t *testing.T) *filePair {
	p := &filePair{t: t, now: time.Unix(1, 0), ends: [2]*FileExchange{NewFileExchange(fault.HalfHost), NewFileExchange(fault.HalfDNP)}}
	for i := range p.ends {
		for id := FileRevoked; int(id) <= numFiles; id++ {
			p.hold(i, id, 0, nil)
		}
	}
	return p
}

func (p *filePair) hold(end int, id FileID, version uint64, data []byte) {
	p.ends[end].Hold(HeldFile{ID: id, Version: version, Data: data, Most: 100_000})
}

// second lets both ends tick, and carries all messages. It returns the files that arrive at each end.
func (p *filePair) second() (got [2][]HeldFile) {
	p.t.Helper()
	p.now = p.now.Add(time.Second)
	type mail struct {
		to int
		b  []byte
	}
	var way []mail
	for i, e := range p.ends {
		for _, b := range e.Tick() {
			way = append(way, mail{1 - i, b})
		}
	}
	for ; len(way) > 0; way = way[1:] {
		p.sent++
		if p.drop != nil && p.drop(p.sent) {
			continue
		}
		send, f, err := p.ends[way[0].to].Hear(p.now, way[0].b)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, b := range send {
			way = append(way, mail{1 - way[0].to, b})
		}
		if f.Data != nil {
			got[way[0].to] = append(got[way[0].to], f)
		}
	}
	return got
}

func TestFilesGoToTheHalfThatNeedsThem(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789abcdef"), 2000) // eight pieces
	for _, tc := range []struct {
		name     string
		id       FileID
		from, to int
		version  uint64
	}{
		{"revoked to the DNP half", FileRevoked, 0, 1, 3},
		{"revoked to the host half", FileRevoked, 1, 0, 3},
		{"peers", FilePeers, 1, 0, 0},
		{"request", FileRenewRequest, 1, 0, 0},
		{"answer", FileRenewAnswer, 0, 1, 0},
	} {
		p := newFilePair(t)
		p.hold(tc.from, tc.id, tc.version, long)
		p.hold(tc.to, tc.id, tc.version-min(tc.version, 1), []byte("old"))
		got := p.second()
		if len(got[tc.to]) != 1 || got[tc.to][0].ID != tc.id || !bytes.Equal(got[tc.to][0].Data, long) || len(got[tc.from]) != 0 {
			t.Errorf("%s: %d files, and %d back", tc.name, len(got[tc.to]), len(got[tc.from]))
			continue
		}
		p.hold(tc.to, tc.id, tc.version, long)
		p.second()
		if p.ends[tc.from].Version(tc.id) != tc.version {
			t.Errorf("%s: the version in force there is %d: want %d", tc.name, p.ends[tc.from].Version(tc.id), tc.version)
		}
		if got := p.second(); got[0] != nil || got[1] != nil {
			t.Errorf("%s: carried again", tc.name)
		}
	}
}

// TestFilesDoNotGoBack: an end takes no older list, and no file that is the other half's to write.
func TestFilesDoNotGoBack(t *testing.T) {
	p := newFilePair(t)
	p.hold(0, FileRevoked, 4, []byte("new"))
	p.hold(1, FileRevoked, 5, []byte("newer"))
	p.hold(0, FilePeers, 0, []byte("copy"))
	p.hold(1, FileRenewAnswer, 0, []byte("copy"))
	got := p.second()
	if len(got[1]) != 0 || len(got[0]) != 1 || got[0][0].ID != FileRevoked {
		t.Errorf("%+v", got)
	}
}

func TestFilesSurviveLoss(t *testing.T) {
	long := bytes.Repeat([]byte{7}, 40_000)
	p := newFilePair(t)
	p.drop = func(i int) bool { return i%5 == 0 }
	p.hold(0, FileRevoked, 1, long)
	for range 60 {
		if got := p.second(); len(got[1]) == 1 && bytes.Equal(got[1][0].Data, long) {
			return
		}
	}
	t.Error("not arrived after 60 s with a fifth of the messages lost")
}

// TestRefusedFileIsNotAskedAtOnce: content that does not verify costs bandwidth once a minute at most.
func TestRefusedFileIsNotAskedAtOnce(t *testing.T) {
	p := newFilePair(t)
	p.hold(0, FileRevoked, 1, []byte("forged"))
	for i := range 62 {
		got := p.second()
		if want := i == 0 || i == 60; (len(got[1]) == 1) != want {
			t.Fatalf("second %d: %d files", i, len(got[1]))
		}
		for _, f := range got[1] {
			p.ends[1].Refuse(p.now, f.ID, f.Data)
		}
	}
	p.hold(0, FileRevoked, 2, []byte("good"))
	if got := p.second(); len(got[1]) != 1 {
		t.Error("the refusal hinders other content")
	}
}

func TestFileMessagesAreBounded(t *testing.T) {
	x := NewFileExchange(fault.HalfDNP)
	x.Hold(HeldFile{ID: FileRevoked, Most: 10})
	for _, tc := range []struct {
		b    []byte
		want string
	}{
		{nil, "0 bytes: want at least 1"},
		{[]byte{9}, "kind is 9: want 1 to 3"},
		{make([]byte, 3), "kind is 0"},
		{append([]byte{fileState}, make([]byte, fileEntry+1)...), "state of 46 bytes: want entries of 45"},
		{append([]byte{fileState}, make([]byte, fileEntry*100)...), "state of 4500 bytes"},
		{append(head(fileWant, FilePeers, [32]byte{}, 0), 1), "question or piece of 39 bytes"},
		{head(fileWant, 9, [32]byte{}, 0), "for file 1 to 4"},
		{append(head(filePiece, FilePeers, [32]byte{}, 0), make([]byte, FilePiece+1)...), "a piece of at most 4096"},
	} {
		if _, _, err := x.Hear(time.Unix(1, 0), tc.b); !errors.Is(err, ErrFileMessage) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: want %q", err, tc.want)
		}
	}
	other := NewFileExchange(fault.HalfHost)
	other.Hold(HeldFile{ID: FileRevoked, Version: 1, Data: make([]byte, 11), Most: 100})
	if send, _, err := x.Hear(time.Unix(1, 0), other.Tick()[0]); len(send) != 0 || err != nil {
		t.Errorf("a file above its bound is asked for: %v %v", send, err)
	}
	asked := head(fileWant, FileRevoked, other.files[FileRevoked].own.sum, 0)
	n := 0
	for range 2 * fileAnswers {
		send, _, _ := other.Hear(time.Unix(1, 0), asked)
		n += len(send)
	}
	if n != fileAnswers {
		t.Errorf("%d pieces between two ticks: want %d", n, fileAnswers)
	}
	other.Forget()
	if FileID(9).String() != "FileID(9)" || FilePeers.String() != "peers" {
		t.Error("names")
	}
}

func FuzzFileExchange(f *testing.F) {
	x := NewFileExchange(fault.HalfHost)
	x.Hold(HeldFile{ID: FileRevoked, Version: 1, Data: []byte("list"), Most: 100})
	f.Add(x.Tick()[0])
	f.Add(append(head(filePiece, FileRevoked, [32]byte{}, 0), "list"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		x := NewFileExchange(fault.HalfDNP)
		x.Hold(HeldFile{ID: FileRevoked, Data: []byte("old"), Most: 64})
		_, got, _ := x.Hear(time.Unix(1, 0), b)
		if len(got.Data) > 64 {
			t.Fatal("a file above its bound")
		}
	})
}
