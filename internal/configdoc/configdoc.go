// Package configdoc makes of the configurations' structs and their doc comments what people read: the reference
// (docs/configuration.md), and default files with every key explained (deploy/config). The comments in the code are the only
// source.
//
// It reads the source of this module, and is no part of any program that is shipped.
package configdoc

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/lofamo/lofamo/internal/config"
)

// module is the path of this module.
const module = "github.com/lofamo/lofamo/"

// Field is one key.
type Field struct {
	Key    string
	Doc    string // one paragraph
	Type   string // for people
	List   bool   // Fields are those of each entry
	Map    bool   // Fields are those of each value
	Fields []Field
}

// Source is the module's source.
type Source struct {
	root     string
	packages map[string]map[string]typeOf // by import path and type name
}

type typeOf struct {
	spec    *ast.TypeSpec
	doc     string
	imports map[string]string // of its file, by name
	pkg     string
}

// Open is the source below a directory, that of go.mod.
func Open(root string) *Source { return &Source{root: root, packages: map[string]map[string]typeOf{}} }

func (s *Source) load(pkg string) (map[string]typeOf, error) {
	if p := s.packages[pkg]; p != nil {
		return p, nil
	}
	types := map[string]typeOf{}
	files, err := filepath.Glob(filepath.Join(s.root, strings.TrimPrefix(pkg, module), "*.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("source of %s: no files: %w", pkg, fs.ErrNotExist)
	}
	fset := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("source of %s: %w", pkg, err)
		}
		imports := map[string]string{}
		for _, i := range f.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return nil, err
			}
			base := path[strings.LastIndex(path, "/")+1:]
			if i.Name != nil {
				base = i.Name.Name
			}
			imports[base] = path
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range g.Specs {
				if t, ok := spec.(*ast.TypeSpec); ok {
					types[t.Name.Name] = typeOf{t, paragraph(g.Doc), imports, pkg}
				}
			}
		}
	}
	s.packages[pkg] = types
	return types, nil
}

// paragraph is a comment in one line.
func paragraph(c *ast.CommentGroup) string {
	if c == nil {
		return ""
	}
	return strings.Join(strings.Fields(c.Text()), " ")
}

// Struct returns the keys of a struct type, in the order of its fields, and its own comment.
func (s *Source) Struct(pkg, name string) ([]Field, string, error) {
	types, err := s.load(module + pkg)
	if err != nil {
		return nil, "", err
	}
	t, ok := types[name]
	if !ok {
		return nil, "", fmt.Errorf("type %s.%s: not found", pkg, name)
	}
	fields, err := s.fields(t)
	return fields, t.doc, err
}

func (s *Source) fields(t typeOf) ([]Field, error) {
	st, ok := t.spec.Type.(*ast.StructType)
	if !ok {
		return nil, nil
	}
	names := keysOf(st)
	var out []Field
	for _, f := range st.Fields.List {
		if f.Tag == nil {
			continue
		}
		tag, err := strconv.Unquote(f.Tag.Value)
		if err != nil {
			return nil, err
		}
		key, options, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		if key == "-" {
			continue
		}
		if key == "" && strings.Contains(options, "inline") || len(f.Names) == 0 {
			inner, err := s.field(Field{}, f.Type, t)
			if err != nil {
				return nil, err
			}
			out = append(out, inner.Fields...)
			continue
		}
		doc := paragraph(f.Doc)
		if doc == "" {
			doc = paragraph(f.Comment)
		}
		if doc == "" {
			doc = s.overridden(t, f.Names[0].Name)
		}
		if doc == "" {
			doc = s.docOf(f.Type, t)
		}
		doc = names.in(doc)
		field, err := s.field(Field{Key: key, Doc: plain(doc, f.Names[0].Name, key)}, f.Type, t)
		if err != nil {
			return nil, err
		}
		out = append(out, field)
	}
	return out, nil
}

// keys are a struct's keys by the names of its fields.
type keys map[string]string

func keysOf(st *ast.StructType) keys {
	out := keys{}
	for _, f := range st.Fields.List {
		if f.Tag == nil {
			continue
		}
		if tag, err := strconv.Unquote(f.Tag.Value); err == nil {
			for _, n := range f.Names {
				out[n.Name], _, _ = strings.Cut(reflect.StructTag(tag).Get("json"), ",")
			}
		}
	}
	return out
}

// inSentence is a word that does not begin a sentence: there a capital letter is a name.
var inSentence = regexp.MustCompile(`([^.:] \(?)([A-Z][A-Za-z]+)\b`)

// in puts keys in the place of fields' names in a comment.
func (k keys) in(doc string) string {
	return inSentence.ReplaceAllStringFunc(doc, func(found string) string {
		m := inSentence.FindStringSubmatch(found)
		if key := k[m[2]]; key != "" {
			return m[1] + key
		}
		return found
	})
}

// overridden is the comment of a field in the struct that this one sets single values of: that of XOverride is X.
func (s *Source) overridden(t typeOf, field string) string {
	of, ok := strings.CutSuffix(t.spec.Name.Name, "Override")
	if !ok {
		return ""
	}
	base, ok := s.packages[t.pkg][of]
	if !ok {
		return ""
	}
	st, ok := base.spec.Type.(*ast.StructType)
	if !ok {
		return ""
	}
	for _, f := range st.Fields.List {
		for _, n := range f.Names {
			if n.Name == field {
				return cmp.Or(paragraph(f.Doc), paragraph(f.Comment))
			}
		}
	}
	return ""
}

// plain puts the key in the place of the field's name at the beginning of a comment.
func plain(doc, name, key string) string {
	if rest, ok := strings.CutPrefix(doc, name); ok &&
		(strings.HasPrefix(rest, " ") || strings.HasPrefix(rest, ":") || strings.HasPrefix(rest, ",")) {
		return key + rest
	}
	return doc
}

// docOf is the comment of a field's type, for fields that say nothing themselves.
func (s *Source) docOf(e ast.Expr, in typeOf) string {
	if t, ok, err := s.resolve(e, in); err == nil && ok {
		return t.doc
	}
	return ""
}

// resolve finds the declaration of a named type of this module.
func (s *Source) resolve(e ast.Expr, in typeOf) (typeOf, bool, error) {
	pkg := in.pkg
	var name string
	switch e := e.(type) {
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		x, ok := e.X.(*ast.Ident)
		if !ok {
			return typeOf{}, false, nil
		}
		pkg, name = in.imports[x.Name], e.Sel.Name
	default:
		return typeOf{}, false, nil
	}
	if !strings.HasPrefix(pkg, module) {
		return typeOf{}, false, nil
	}
	types, err := s.load(pkg)
	if err != nil {
		return typeOf{}, false, err
	}
	t, ok := types[name]
	return t, ok, nil
}

// scalars are struct types that are written as one YAML value.
var scalars = map[string]string{
	"Duration": "duration", "NodeID": "name", "string": "text", "bool": "true or false", "int": "number", "int32": "number", "int64": "number",
	"uint32": "number",
	"uint64": "number", "float64": "number", "Secret": "text",
}

func (s *Source) field(f Field, e ast.Expr, in typeOf) (Field, error) {
	switch e := e.(type) {
	case *ast.StarExpr:
		return s.field(f, e.X, in)
	case *ast.ArrayType:
		inner, err := s.field(Field{}, e.Elt, in)
		f.List, f.Fields, f.Type = true, inner.Fields, "list of "+inner.Type
		return f, err
	case *ast.MapType:
		inner, err := s.field(Field{}, e.Value, in)
		f.Map, f.Fields, f.Type = true, inner.Fields, "map to "+inner.Type
		return f, err
	case *ast.StructType:
		inner, err := s.fields(typeOf{&ast.TypeSpec{Name: in.spec.Name, Type: e}, "", in.imports, in.pkg})
		f.Fields, f.Type = inner, "section"
		return f, err
	}
	name := ""
	switch e := e.(type) {
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		name = e.Sel.Name
	}
	if known, ok := scalars[name]; ok {
		f.Type = known
		return f, nil
	}
	t, ok, err := s.resolve(e, in)
	if err != nil {
		return f, err
	}
	if !ok {
		return f, fmt.Errorf("type %s of %s in %s: unknown", name, f.Key, in.pkg)
	}
	if _, isStruct := t.spec.Type.(*ast.StructType); isStruct {
		f.Type = "section"
		f.Fields, err = s.fields(t)
		return f, err
	}
	return s.field(f, t.spec.Type, t)
}

// Defaults returns a configuration as a JSON decoder would decode it, with durations as people write them.
func Defaults(cfg any) (map[string]any, error) {
	b, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	return out, json.Unmarshal([]byte(config.ShortTimes(string(b))), &out)
}
