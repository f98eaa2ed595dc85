package archtest

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/scanner"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/lofamo/lofamo/api/lofamo/v1" // registers its descriptors
)

// TestProtosSayWhatTheyMean: every message, field, enum, value, service and call of the API has a comment, in the lines
// before it or behind it. The list comes from the descriptors, so that nothing escapes that the text parser does not
// understand.
func TestProtosSayWhatTheyMean(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("..", "..", "api", "lofamo", "v1", "*.proto"))
	if err != nil {
		t.Fatal(err)
	}
	comments := map[protoreflect.FullName]string{}
	for _, p := range paths {
		src, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(comments, protoComments("lofamo.v1", string(src)))
	}
	n := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("lofamo.v1", func(f protoreflect.FileDescriptor) bool {
		eachDescriptor(f, func(d protoreflect.Descriptor) {
			n++
			if comment, found := comments[d.FullName()]; !found {
				t.Errorf("%s: %s is not found in the text", f.Path(), d.FullName())
			} else if !saysMore(comment, string(d.Name())) {
				t.Errorf("%s: %s has the comment %q: want what it means, its unit, and what its absence says", f.Path(), d.FullName(), comment)
			}
		})
		return true
	})
	if n < 500 {
		t.Errorf("only %d descriptors found", n)
	}
}

// eachDescriptor calls do for all that a file declares.
func eachDescriptor(f protoreflect.FileDescriptor, do func(protoreflect.Descriptor)) {
	enums := func(list protoreflect.EnumDescriptors) {
		for i := range list.Len() {
			do(list.Get(i))
			for j := range list.Get(i).Values().Len() {
				do(list.Get(i).Values().Get(j))
			}
		}
	}
	var messages func(protoreflect.MessageDescriptors)
	messages = func(list protoreflect.MessageDescriptors) {
		for i := range list.Len() {
			m := list.Get(i)
			if m.IsMapEntry() {
				continue // of the compiler's making
			}
			do(m)
			for j := range m.Fields().Len() {
				do(m.Fields().Get(j))
			}
			enums(m.Enums())
			messages(m.Messages())
		}
	}
	enums(f.Enums())
	messages(f.Messages())
	for i := range f.Services().Len() {
		s := f.Services().Get(i)
		do(s)
		for j := range s.Methods().Len() {
			do(s.Methods().Get(j))
		}
	}
}

// saysMore reports whether a comment has content beyond the name.
func saysMore(comment, name string) bool {
	letters := func(s string) string {
		return strings.Map(func(r rune) rune {
			if !unicode.IsLetter(r) {
				return -1
			}
			return unicode.ToLower(r)
		}, s)
	}
	said := strings.TrimPrefix(letters(comment), "the")
	return said != "" && said != letters(name)
}

// protoComments returns the comments of all declarations of a proto file, by full name; an empty one if there is none.
// It understands our files' style: one declaration a line, comments with two slashes.
func protoComments(pkg, src string) map[protoreflect.FullName]string {
	p := protoText{pkg: pkg, above: map[int]string{}, behind: map[int]string{}, at: map[protoreflect.FullName]extent{}}
	var statement []protoToken
	lastLine := 0 // of the last token that is no comment
	var s scanner.Scanner
	s.Init(strings.NewReader(src))
	s.Mode = scanner.ScanIdents | scanner.ScanInts | scanner.ScanStrings | scanner.ScanComments
	for r := s.Scan(); r != scanner.EOF; r = s.Scan() {
		text := s.TokenText()
		if r == scanner.Comment {
			if s.Line == lastLine {
				p.behind[s.Line] = text
			} else {
				p.above[s.Line] = text
			}
			continue
		}
		lastLine = s.Line
		statement = append(statement, protoToken{text, s.Line})
		if text == ";" || text == "{" || text == "}" {
			p.take(statement)
			statement = nil
		}
	}
	out := map[protoreflect.FullName]string{}
	for name, at := range p.at {
		out[name] = p.comment(at)
	}
	return out
}

type protoToken struct {
	text string
	line int
}

// protoText is a proto file that is being read.
type protoText struct {
	pkg           string
	scopes        []scope
	above, behind map[int]string // comments by line: alone in it, or behind something
	at            map[protoreflect.FullName]extent
}

type extent struct{ first, last int } // lines

// scope is the declaration around braces.
type scope struct{ kind, name string }

// take takes a statement: the tokens up to a semicolon or a brace.
func (p *protoText) take(s []protoToken) {
	first, end := s[0].text, s[len(s)-1].text
	if end == "}" {
		p.scopes = p.scopes[:len(p.scopes)-1]
		return
	}
	switch first {
	case "message", "enum", "service", "rpc":
		p.declare(s, s[1].text)
	case "syntax", "package", "import", "option", "reserved", "oneof":
	default:
		if i := slices.IndexFunc(s, func(t protoToken) bool { return t.text == "=" }); i > 0 {
			p.declare(s, s[i-1].text)
		}
	}
	if end == "{" {
		p.scopes = append(p.scopes, scope{first, s[1].text})
	}
}

// declare notes where something is declared. Values are named beside their enum, and fields beside their oneof.
func (p *protoText) declare(s []protoToken, name string) {
	var full strings.Builder
	full.WriteString(p.pkg)
	for _, sc := range p.scopes {
		if sc.kind != "enum" && sc.kind != "oneof" {
			full.WriteString("." + sc.name)
		}
	}
	p.at[protoreflect.FullName(full.String()+"."+name)] = extent{s[0].line, s[len(s)-1].line}
}

// comment returns the comment right above the first line, and behind the last one.
func (p *protoText) comment(at extent) string {
	out := p.behind[at.last]
	for line := at.first - 1; p.above[line] != ""; line-- {
		out = p.above[line] + " " + out
	}
	return out
}

func TestProtoRuleRefuses(t *testing.T) {
	got := protoComments("p", `
// A is a message.
message A {
  string bare = 1;
  string behind = 2; // with a unit
  // Above it.
  map<string, string> above = 3;
  // Not of the next one: there is a line between them.

  string apart = 4;
  oneof body {
    B one = 5; // of two
  }
  enum E {
    ZERO = 0; // never sent
    ONE = 1;
  }
}
message B {} // empty
service S {
  // Call says something.
  rpc Call(A) returns (B);
  rpc Bare(A) returns (stream B);
}
`)
	for name, want := range map[protoreflect.FullName]string{
		"p.A": "// A is a message. ", "p.A.bare": "", "p.A.behind": "// with a unit", "p.A.above": "// Above it. ", "p.A.apart": "",
		"p.A.one": "// of two", "p.A.E": "", "p.A.ZERO": "// never sent", "p.A.ONE": "", "p.B": "// empty",
		"p.S": "", "p.S.Call": "// Call says something. ", "p.S.Bare": "",
	} {
		if comment, ok := got[name]; !ok || comment != want {
			t.Errorf("%s: %q (found: %t), want %q", name, comment, ok, want)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("and what is not there: %v", got)
	}
	for comment, want := range map[string]bool{"": false, "//": false, "// Node.": false, "// the node": false, "// id of the node": true} {
		if saysMore(comment, "node") != want {
			t.Errorf("%q says more than its name: %t", comment, !want)
		}
	}
}
