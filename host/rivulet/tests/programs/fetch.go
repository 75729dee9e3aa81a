// An HTTP client as Go programs have it: no C library (CGO_ENABLED=0). `fetch URL FILE` downloads, `fetch URL`
// prints the error if there is one.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	answer, err := http.Get(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer answer.Body.Close()
	file, err := os.Create(os.Args[2])
	if err == nil {
		_, err = io.Copy(file, answer.Body)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(answer.StatusCode)
}
