// The way back to the program that waits for its login, without another press.
location.replace(document.getElementById("back").href);
