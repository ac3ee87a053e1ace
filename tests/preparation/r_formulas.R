# Writes r_formulas.json: data of R's package datasets, and what lm() makes of formulas as R writes them.
# Rscript tests/preparation/r_formulas.R tests/preparation/r_formulas.json
library(jsonlite)
library(splines)
air <- na.omit(airquality)
units <- setNames(air, c("Ozone (ppb)", "Solar.R (lang)", "Wind (mph)", "Temp [F]", "Month", "Day"))
data <- list(
  air = air, units = units, iris = transform(iris, Species = as.character(Species)),
  breaks = transform(warpbreaks, wool = as.character(wool), tension = as.character(tension)),
  cars = transform(mtcars, time.id = carb), births = transform(MASS::birthwt, bwt = bwt / 1000),
  years = data.frame(year = as.integer(time(LakeHuron)), level = as.numeric(LakeHuron)),
  world = transform(longley, Employed.k = Employed)
)
cells <- function(frame, drop) frame[!drop(frame), ]
data$empty <- cells(data$breaks, function(d) d$wool == "B" & d$tension == "M")
data$emptyref <- cells(data$breaks, function(d) d$wool == "A" & d$tension == "H")
data$gears <- transform(mtcars, gear = paste0("g", gear), cyl = paste0("c", cyl)) # no c8:g4
formulas <- list(
  list("air", "Ozone ~ log(Solar.R) + Wind"), list("air", "Ozone ~ poly(Solar.R, 2) + factor(Month)"),
  list("air", "Ozone ~ Solar.R + I(Solar.R^2) + I(Temp > 80)"), list("air", "Ozone ~ ."),
  list("air", "Ozone ~ . - Day - Month"), list("air", "Ozone ~ . - 1"),
  list("units", "`Ozone (ppb)` ~ log(`Solar.R (lang)`) + poly(`Temp [F]`, 2)"),
  list("units", "`Ozone (ppb)` ~ I(`Wind (mph)`^2) * factor(Month)"),
  list("iris", "Sepal.Length ~ log(Petal.Width) + Species"), list("iris", "Sepal.Length ~ ."),
  list("iris", "Sepal.Length ~ poly(Petal.Length, 3) + as.factor(Species)"),
  list("iris", "Sepal.Length ~ I(Petal.Length^2) + Petal.Width * I(Sepal.Width >= 3)"),
  list("cars", "mpg ~ factor(time.id) + log(disp)"),
  list("empty", "breaks ~ wool * tension"), list("gears", "mpg ~ cyl * gear"),
  list("gears", "mpg ~ wt + cyl * gear"),
  list("years", "level ~ year + I(year^2)"), list("world", "Employed.k ~ Year + I(Year^2)")
)
fits <- lapply(formulas, function(pair) {
  fitted <- lm(as.formula(pair[[2]]), data[[pair[[1]]]])
  found <- coef(summary(fitted))
  list(data = unbox(pair[[1]]), formula = unbox(pair[[2]]), coef = unname(found[, 1]), std_err = unname(found[, 2]),
       aliased = names(which(is.na(coef(fitted)))), deviance = unbox(deviance(fitted)))
})
knots <- c(8, 11)
spline <- lm(Ozone ~ ns(Wind, knots = knots, Boundary.knots = c(2, 21)), air)
write_json(list(data = data, fits = fits, spline = list(knots = knots, fitted = unname(fitted(spline)))),
           commandArgs(TRUE)[1], digits = NA, dataframe = "columns")
