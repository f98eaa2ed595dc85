// Package apidoc writes docs/api.md, the reference of the gRPC API, from the compiled .proto files with their comments.
// internal/archtest checks that every element has a comment, make check-generate that the page is current.
package apidoc

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// Package is the protobuf package that the page describes. The page names imported types without describing them.
const Package = "lofamo.v1"

// order is that of the page: what people and their programs call before what halves and replicas say to one another.
// Files that it does not know follow, by name.
var order = []string{"fault_supervisor", "types", "manage", "response", "admin", "reconfigure", "local", "executor", "wire",
	"replica", "upstream"}

// Page is the reference of an image: the binary form of a FileDescriptorSet that has its source info, as buf build
// writes it.
func Page(image []byte) (string, error) {
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(image, &set); err != nil {
		return "", fmt.Errorf("read the image: %w", err)
	}
	registry, err := protodesc.NewFiles(&set)
	if err != nil {
		return "", fmt.Errorf("link the image: %w", err)
	}
	var files []protoreflect.FileDescriptor
	registry.RangeFilesByPackage(Package, func(f protoreflect.FileDescriptor) bool {
		files = append(files, f)
		return true
	})
	if len(files) == 0 {
		return "", fmt.Errorf("the image has no file of package %s", Package)
	}
	if files[0].SourceLocations().Len() == 0 {
		return "", errors.New("the image has no source info, and so no comments")
	}
	slices.SortFunc(files, func(a, b protoreflect.FileDescriptor) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a.Path(), b.Path())
	})
	p := page{}
	p.head(files)
	for _, f := range files {
		p.file(f)
	}
	return p.String(), nil
}

func rank(f protoreflect.FileDescriptor) int {
	if i := slices.Index(order, base(f)); i >= 0 {
		return i
	}
	return len(order)
}

// base is a file's name without folder and ending.
func base(f protoreflect.FileDescriptor) string {
	return strings.TrimSuffix(f.Path()[strings.LastIndexByte(f.Path(), '/')+1:], ".proto")
}

type page struct{ strings.Builder }

func (p *page) line(format string, args ...any) {
	fmt.Fprintf(&p.Builder, format, args...)
	p.WriteByte('\n')
}

const intro = `# API reference

` + "`make generate`" + ` makes this page from the comments in [api/lofamo/v1](../api/lofamo/v1); do not edit it.
[Clients](clients.md) shows the first calls, in Python, Go and on the command line.

This is the gRPC package ` + "`" + Package + "`" + `. Supervisors serve it at ` + "`grpc`" + ` of their configuration,
with mutual TLS ([who may do what](security.md#who-may-do-what)). A host half serves ` + "`Local`" + ` on a Unix socket
of its node ([jobs](jobs.md)). ` + "`lofamoctl … -o json`" + ` prints these messages in protobuf JSON. Errors are gRPC's
codes, listed at each call; INVALID_ARGUMENT names the field, its value and the allowed values. A later version may add
fields, values and calls: ignore unknown ones. An absent field has the zero of its type; the field's comment explains
that zero.
`

func (p *page) head(files []protoreflect.FileDescriptor) {
	p.line("%s", intro)
	p.line("| service | purpose |")
	p.line("|---|---|")
	for _, f := range files {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			p.line("| [%s](#%s) | %s |", s.Name(), anchor(s), firstSentence(comment(s)))
		}
	}
	p.line("")
}

func (p *page) file(f protoreflect.FileDescriptor) {
	p.line("## %s\n", f.Path())
	if text := detached(f); text != "" {
		p.line("%s\n", text)
	}
	for i := range f.Services().Len() {
		p.service(f.Services().Get(i))
	}
	p.messages(f.Messages())
	p.enums(f.Enums())
}

func (p *page) service(s protoreflect.ServiceDescriptor) {
	p.line("### %s\n\n%s\n", s.Name(), comment(s))
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		p.line("#### %s\n", title(m))
		p.line("%s%s → %s%s\n", stream(m.IsStreamingClient()), link(m.Input()), stream(m.IsStreamingServer()), link(m.Output()))
		p.line("%s\n", comment(m))
	}
}

func stream(is bool) string {
	if is {
		return "stream of "
	}
	return ""
}

func (p *page) messages(list protoreflect.MessageDescriptors) {
	for i := range list.Len() {
		m := list.Get(i)
		if m.IsMapEntry() {
			continue // of the compiler's making
		}
		p.line("### %s\n\n%s\n", title(m), comment(m))
		if m.Fields().Len() > 0 {
			p.line("| field | number | type | meaning |")
			p.line("|---|---|---|---|")
			for j := range m.Fields().Len() {
				f := m.Fields().Get(j)
				p.line("| `%s` | %d | %s | %s%s |", f.Name(), f.Number(), typeOf(f), oneof(f), cell(comment(f)))
			}
			p.line("")
		}
		p.enums(m.Enums())
		p.messages(m.Messages())
	}
}

func (p *page) enums(list protoreflect.EnumDescriptors) {
	for i := range list.Len() {
		e := list.Get(i)
		p.line("### %s\n\n%s\n", title(e), comment(e))
		p.line("| value | number | meaning |")
		p.line("|---|---|---|")
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			p.line("| `%s` | %d | %s |", v.Name(), v.Number(), cell(comment(v)))
		}
		p.line("")
	}
}

func oneof(f protoreflect.FieldDescriptor) string {
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
		return fmt.Sprintf("*one of `%s`*: ", o.Name())
	}
	return ""
}

func typeOf(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return "map of " + kindOf(f.MapKey()) + " to " + kindOf(f.MapValue())
	case f.IsList():
		return "list of " + kindOf(f)
	case f.HasOptionalKeyword():
		return kindOf(f) + ", optional"
	default:
		return kindOf(f)
	}
}

func kindOf(f protoreflect.FieldDescriptor) string {
	if m := f.Message(); m != nil {
		return link(m)
	}
	if e := f.Enum(); e != nil {
		return link(e)
	}
	return f.Kind().String()
}

// title names a declaration within its package: Service.Call, Outer.Inner.
func title(d protoreflect.Descriptor) string {
	return strings.TrimPrefix(string(d.FullName()), Package+".")
}

// anchor returns the anchor of a heading: lower case, without dots.
func anchor(d protoreflect.Descriptor) string {
	return strings.ReplaceAll(strings.ToLower(title(d)), ".", "")
}

func link(d protoreflect.Descriptor) string {
	if d.ParentFile().Package() != Package {
		return string(d.FullName())
	}
	return fmt.Sprintf("[%s](#%s)", title(d), anchor(d))
}

// comment returns the comments before and behind a declaration.
func comment(d protoreflect.Descriptor) string {
	loc := d.ParentFile().SourceLocations().ByDescriptor(d)
	return joined(loc.LeadingComments, loc.TrailingComments)
}

// detached returns the comment on a file, before its first statement.
func detached(f protoreflect.FileDescriptor) string {
	const syntax = 12 // the field of FileDescriptorProto
	loc := f.SourceLocations().ByPath(protoreflect.SourcePath{syntax})
	return joined(append(slices.Clone(loc.LeadingDetachedComments), loc.LeadingComments)...)
}

func joined(parts ...string) string {
	var out []string
	for _, text := range parts {
		var lines []string
		for l := range strings.Lines(text) {
			lines = append(lines, strings.TrimPrefix(strings.TrimRight(l, " \n"), " "))
		}
		if text := strings.TrimSpace(strings.Join(lines, "\n")); text != "" {
			out = append(out, text)
		}
	}
	return strings.ReplaceAll(strings.Join(out, "\n"), "<", "&lt;")
}

// cell is a text as it stands in a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

func firstSentence(text string) string {
	text = cell(text)
	if i := strings.Index(text, ". "); i >= 0 {
		return text[:i+1]
	}
	return text
}
